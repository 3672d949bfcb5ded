"""A store or a bundle as a readable table."""

from collections.abc import Sequence

from pluto_edge import _text
from pluto_edge.manifest import Bundle
from pluto_edge.preprocess import Preprocessing
from pluto_edge.store import Store


def describe_bundle(bundle: Bundle) -> str:
    """What is in a bundle, as text for a terminal."""
    m = bundle.manifest
    for name in m.names:
        bundle.load_module(name)
    selector = bundle.load_selector()
    worst = max((e.error / e.tolerance for e in m.parity), default=0.0)
    lines = _text.pairs(
        [
            (
                "bundle",
                f"{bundle.path}  ({_text.size(sum(f.size for f in m.files.values()))}, checksums right)",
            ),
            ("backbone", f"{m.architecture}, {m.precision}"),
            ("profile", m.profile if m.batch is None else f"{m.profile}, {m.batch} images at a time"),
            ("images", _images(m.preprocessing)),
            ("tokens", f"{m.tokens} of width {m.dims.width}, {m.dims.depth} blocks"),
            ("classes", _names(m.classes)),
            ("selector", f"{selector.parameters:,} parameters, width {selector.up_x.shape[1]}"),
            ("parity", f"worst of {len(m.parity)} checks at {worst:.0%} of its tolerance"),
            ("written by", m.writer),
        ]
    )
    rows = [(e.name, _text.size(m.files[e.file].size), e.source, _metrics(e.metrics)) for e in m.modules]
    return f"{lines}\n\n{_module_table(m.dims.kind, rows)}"


def describe_store(store: Store) -> str:
    """What is in a store, as text for a terminal."""
    c = store.config
    weights = (
        f"timm tag {c.backbone.pretrained}"
        if c.backbone.pretrained
        else _text.size(store.backbone_file.stat().st_size)
        if store.backbone_file.is_file()
        else "backbone.safetensors is missing"
    )
    selector = (
        f"{store.load_selector().parameters:,} parameters" if store.selector_file.is_file() else "not trained yet"
    )
    lines = _text.pairs(
        [
            ("store", store.path),
            ("backbone", f"{c.backbone.architecture}, {weights}"),
            ("images", _images(c.preprocessing)),
            ("classes", _names(c.classes)),
            ("module", f"{c.kind}, size {c.size}, {c.dims.parameters:,} parameters"),
            ("selector", selector),
            ("written by", c.writer),
        ]
    )
    rows = []
    for name in store.names:
        module = store.load_module(name)
        config = store.module_config(name)
        count = sum(t.size for t in module.tensors.values())
        rows.append((name, f"{count:,}", config.source, _metrics(config.metrics)))
    return f"{lines}\n\n{_module_table(c.kind, rows)}"


def _module_table(kind: str, rows: Sequence[tuple[str, str, str, str]]) -> str:
    return _text.table((f"module ({kind})", "size", "source", "metrics"), rows, right=(1,))


def _images(p: Preprocessing) -> str:
    crop = f"{p.interpolation}, {p.crop_mode} crop {p.crop_pct:g}"
    return f"{p.size[0]} x {p.size[1]}, {crop}, mean {p.mean}, std {p.std}"


def _names(classes: Sequence[str]) -> str:
    shown = ", ".join(classes[:8])
    return f"{len(classes)}: {shown}{', ...' if len(classes) > 8 else ''}"


def _metrics(metrics: dict[str, float]) -> str:
    return ", ".join(f"{k} {v:g}" for k, v in sorted(metrics.items()))
