"""Golden vectors: what Python's runtime says, for every other host to say the same.

    python hosts/golden/make.py            # writes bundles/, cases/ and cases.json anew, in this folder

Small random backbones, both kinds of modules, fp32 and int8: ten steps of 16 images through two known domains and
an unknown one, with the paper's algorithm and with the defaults; a sequel in which the domains are mixed; streams
frame by frame; a step for every branch that these do not reach; and images in every way of being resized.
`README.md` says what is in the files.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from pluto_edge import Runtime
from pluto_edge.config import AdaptConfig
from pluto_edge.manifest import Precision
from pluto_edge.modules import Kind, Module
from pluto_edge.preprocess import ImageBatch, Preprocessing
from pluto_edge.runtime.types import Event, Prediction
from pluto_edge.store import Store

HERE = Path(__file__).parent
Frames = NDArray[np.uint8]
Floats = NDArray[np.float32]
Mode = Literal["step", "stream"]

SIZE = 24  # pixels, of the backbone
FRAME = (15, 20)  # height and width of an image before it is resized
CLASSES = 7
BATCH = 16
SURE = 8.0  # logits, about, between the class of an image and the others
NOISE = 0.5  # of a class's pattern
LOUD = 5.0  # times the backbone of a random store, to which all images would look much alike
# how bright and how loud the images of a domain are; `other` belongs to no module, `between` could be of either
DOMAINS = {"domain-0": (90.0, 18.0), "domain-1": (165.0, 45.0), "other": (128.0, 75.0), "between": (110.0, 24.0)}
GENERALIST = "domain-2"
STORY = ("domain-0",) * 4 + ("domain-1",) * 4 + ("other",) * 2  # of ten steps
SEQUEL = ("domain-0", "domain-1", "between", "domain-0")  # in turns, image by image: several domains at once


@dataclass(frozen=True)
class Case:
    """One run: a bundle, how it adapts, and what it is shown."""

    name: str
    bundle: str
    config: AdaptConfig
    mode: Mode = "step"
    frames: int = len(STORY) * BATCH
    rounding: float = 1.0  # times the usual tolerance: steps that are too large blow rounding up


PAPER = AdaptConfig.paper()
# what the two configurations above leave out, one branch or another in each
BRANCHES: dict[str, AdaptConfig] = {
    "letter": replace(PAPER, sam="sample", selector_optimizer="adam", selector_steps=2, top_m=2),
    "gather": replace(PAPER, min_reliable=24, ln_layers=(0, 1, 4), rho=0.0),
    "recovery": replace(PAPER, recovery=0.15, filter=False),
    "harm": replace(PAPER, ln_lr=0.01, selector_lr=0.02),
    "both": AdaptConfig(weighting="generalist", objective="both"),
    "selector": AdaptConfig(weighting="selector", prototypes=False, continuity=False),
    "no_guard": AdaptConfig(guard=False, ln_lr=0.2, continuity=False),
}


def cases() -> list[Case]:
    """All of them; names are those of the files."""
    found = []
    for bundle in ("vpt-fp32", "vpt-int8", "adapter-fp32", "adapter-int8"):
        # kernels round int8 in ways of their own, and teaching makes steps of that, one way or the other
        default = AdaptConfig(objective="align") if "int8" in bundle else AdaptConfig()
        found += [Case(f"{bundle}-paper", bundle, PAPER), Case(f"{bundle}-default", bundle, default)]
    for name, config in BRANCHES.items():
        found.append(Case(f"adapter-fp32-{name}", "adapter-fp32", config, rounding=10.0 if name == "harm" else 1.0))
    found.append(Case("adapter-fp32-mixed", "adapter-fp32", AdaptConfig(), frames=len(STORY + SEQUEL) * BATCH))
    streams = {"paper": PAPER, "default": AdaptConfig()}
    return found + [Case(f"stream-{n}", "adapter-fp32", c, "stream", 9 * BATCH) for n, c in streams.items()]


def images(domain: str, count: int, seed: int) -> tuple[Frames, NDArray[np.intp]]:
    """[n,H,W,3] and their classes: a class is a coarse pattern; level and loudness are the domain's own."""
    level, loud = DOMAINS[domain]
    rng = np.random.default_rng(seed)
    patterns = np.random.default_rng(0).standard_normal((CLASSES, 5, 5, 3))
    classes = rng.integers(0, CLASSES, count)
    coarse = patterns[classes] + NOISE * rng.standard_normal((count, 5, 5, 3))
    coarse = coarse.repeat(FRAME[0] // 5, axis=1).repeat(FRAME[1] // 5, axis=2)
    fine = 0.3 * rng.standard_normal((count, *FRAME, 3))
    return np.clip(level + loud * (coarse + fine), 0, 255).astype(np.uint8), classes


def make_bundle(out: Path, kind: Kind, precision: Precision) -> None:
    """A bundle of a tiny random ViT whose modules know their sources: two specialists, and a generalist of both."""
    from pluto_edge.export.exporter import run_export
    from pluto_edge.export.random_store import make_random_store

    with tempfile.TemporaryDirectory() as folder:
        store = make_random_store(
            Path(folder) / "store",
            architecture="vit_tiny_patch16_224",
            options={"embed_dim": 24, "depth": 2, "num_heads": 2, "patch_size": 8},
            image_size=(SIZE, SIZE),
            kind=kind,
            size=3,
            classes=CLASSES,
            modules=3,
        )
        backbone = load_file(store.backbone_file)
        matrices = {name: LOUD * value for name, value in backbone.items() if value.ndim > 1 and "pos" not in name}
        save_file({**backbone, **matrices}, store.backbone_file)
        sign(store)
        run_export(store.path, out, precision=precision, force=True)


def sign(store: Store, count: int = 120) -> None:
    """Heads that tell the classes of a module's domain apart, and signatures; the last module is the generalist."""
    import torch

    from pluto_edge.train.signature import make_signature
    from pluto_edge.vit.backbone import load_backbone
    from pluto_edge.vit.torch_vit import TorchViT

    vit = TorchViT(load_backbone(store))
    for name in store.names:
        module = store.load_module(name)
        sources = [name] if name != GENERALIST else ["domain-0", "domain-1"]
        source, labels = (np.concatenate(v) for v in zip(*(images(s, count, 100) for s in sources), strict=True))
        pixels = torch.from_numpy(ImageBatch(source, store.config.preprocessing)[:])
        params = {**vit.backbone_ln(), **{k: torch.from_numpy(v) for k, v in module.tensors.items()}}
        with torch.no_grad():
            tokens, looks = vit.embed(pixels)
            activations = vit.activations(tokens, params).numpy()
        head, bias = nearest_mean(activations[:, -1], labels)
        signature = make_signature(activations, labels, head, bias, looks.numpy())
        config = store.module_config(name)
        if name == GENERALIST:
            config = replace(config, role="generalist", homes={"domain-1": 0.75})
        tensors = {**module.tensors, "head_weight": head, "head_bias": bias, **signature.tensors}
        store.save_module(Module(name, module.dims, tensors), config)


def nearest_mean(features: Floats, labels: NDArray[np.intp]) -> tuple[Floats, Floats]:
    """Weight and bias of a head that says which class's mean a feature is nearest to."""
    means = np.stack([features[labels == k].mean(axis=0) for k in range(CLASSES)]).astype(np.float64)
    middle = means.mean(axis=0)
    away = means - middle
    weight = SURE / np.square(away).sum(axis=1).mean() * away
    bias = -(weight * (means + middle)).sum(axis=1) / 2
    return weight.astype(np.float32), bias.astype(np.float32)


def run_case(case: Case, bundle: Path, frames: Frames, out: Path) -> dict[str, Any]:
    """Run it with Python, write its tensors and its state, and give what the list of cases says of it."""
    predictions: list[Prediction] = []
    with Runtime(bundle, providers="cpu", threads=1, config=case.config) as runtime:
        before = runtime.predict(frames[:BATCH])
        if case.mode == "step":
            learner = runtime.learner
            predictions += [runtime.step(frames[at : at + BATCH]) for at in range(0, case.frames, BATCH)]
        else:
            with runtime.stream("golden", batch=BATCH, background=False) as stream:
                predictions += [stream(frame) for frame in frames[: case.frames]]
                learner = stream.learner
        events = learner.events
        learner.save(out / f"{case.name}.state.safetensors")
    tensors = {
        f"{what}.{part}": np.concatenate([getattr(p, part) for p in found])
        for what, found in (("before", [before]), ("during", predictions))
        for part in ("probabilities", "logits", "weights")
    }
    save_file(tensors, out / f"{case.name}.safetensors")
    return {
        "name": case.name,
        "bundle": case.bundle,
        "mode": case.mode,
        "batch": BATCH,
        "frames": case.frames,
        "rounding": case.rounding,
        "config": asdict(case.config),
        "events": [_event(e) for e in events],
    }


def _event(event: Event) -> dict[str, Any]:
    kept = ("kind", "step", "reason", "top", "weights", "samples", "reliable", "entropy_before", "entropy_after")
    return {name: getattr(event, name) for name in kept}


RESIZES: dict[str, Preprocessing] = {
    f"{mode}-{interpolation}-{percent}": Preprocessing(
        size=size,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        interpolation=interpolation,  # type: ignore[arg-type]
        crop_pct=percent / 100,
        crop_mode=mode,  # type: ignore[arg-type]
    )
    for mode, size, interpolation, percent in (
        ("center", (24, 24), "bicubic", 100),
        ("center", (24, 24), "bicubic", 87),
        ("center", (24, 24), "bilinear", 90),
        ("center", (17, 24), "bicubic", 90),
        ("center", (24, 24), "nearest", 100),
        ("center", (24, 24), "box", 90),
        ("center", (24, 24), "hamming", 95),
        ("center", (24, 24), "lanczos", 95),
        ("squash", (20, 24), "bicubic", 90),
        ("border", (24, 24), "bicubic", 95),
    )
}


def write_resizes(out: Path) -> dict[str, Any]:
    """Pictures of several shapes, and what each way of resizing makes of them: bytes, to be equal to the byte."""
    rng = np.random.default_rng(5)
    smooth = np.linspace(0, 255, 61)[None, :, None] * np.linspace(0, 1, 47)[:, None, None]
    pictures = {
        "wide": rng.integers(0, 256, (33, 57, 3), dtype=np.uint8),
        "tall": rng.integers(0, 256, (50, 21, 3), dtype=np.uint8),
        "small": rng.integers(0, 256, (9, 11, 3), dtype=np.uint8),
        "grey": rng.integers(0, 256, (30, 26), dtype=np.uint8),
        "alpha": rng.integers(0, 256, (29, 31, 4), dtype=np.uint8),
        "smooth": np.repeat(smooth, 3, axis=2).astype(np.uint8),
    }
    tensors: dict[str, NDArray[Any]] = {f"picture.{name}": picture for name, picture in pictures.items()}
    for way, preprocessing in RESIZES.items():
        for name, picture in pictures.items():
            (crop,) = ImageBatch(picture, preprocessing).cropped()._items
            tensors[f"{way}.{name}"] = np.ascontiguousarray(crop)
    some = next(iter(RESIZES))
    tensors["normalised"] = RESIZES[some].normalise(tensors[f"{some}.wide"][None])
    save_file(tensors, out / "resizes.safetensors")
    return {"file": "resizes.safetensors", "normalised": some, "ways": {n: asdict(p) for n, p in RESIZES.items()}}


def write_cases(out: Path, wanted: Sequence[Case], bundles: Path, frames: Frames) -> None:
    """A folder of cases that any host can check: cases.json beside images, tensors and states."""
    (out / "cases").mkdir(parents=True, exist_ok=True)
    save_file({"frames": frames}, out / "cases/frames.safetensors")
    found = [run_case(case, bundles / case.bundle, frames, out / "cases") for case in wanted]
    listed = {"frames": "cases/frames.safetensors", "cases": found, "resizes": write_resizes(out / "cases")}
    (out / "cases.json").write_text(json.dumps(listed, indent=1, sort_keys=True) + "\n")


def story(seed: int = 1) -> Frames:
    """The images of all cases, in order."""
    found = [images(domain, BATCH, seed + turn)[0] for turn, domain in enumerate(STORY + SEQUEL)]
    in_turns = np.stack(found[len(STORY) :], axis=1).reshape(-1, *found[0].shape[1:])
    return np.concatenate([*found[: len(STORY)], in_turns])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write into (default: this one)")
    out: Path = parser.parse_args().out
    for folder in ("bundles", "cases"):
        shutil.rmtree(out / folder, ignore_errors=True)
    for kind in ("vpt", "adapter"):
        for precision in ("fp32", "int8"):
            make_bundle(out / "bundles" / f"{kind}-{precision}", kind, precision)
    write_cases(out, cases(), out / "bundles", story())
    for case in json.loads((out / "cases.json").read_text())["cases"]:
        kinds = [event["kind"] for event in case["events"]]
        reliable = sum(event["reliable"] for event in case["events"])
        labels = load_file(out / "cases" / f"{case['name']}.safetensors")["during.probabilities"].argmax(axis=1)
        state = load_file(out / "cases" / f"{case['name']}.state.safetensors")
        learned = sum(name.startswith("affines.") and name.endswith(".scale") for name in state)
        told = ", ".join(f"{kinds.count(k)} {k}" for k in dict.fromkeys(kinds))
        print(
            f"{case['name']:24} {told}; {reliable} reliable, {len(set(labels))} classes, {learned} modules learned"
        )
    files = [f for f in out.rglob("*") if f.is_file() and f.parent != out]
    print(f"{len(files)} files, {sum(f.stat().st_size for f in files):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
