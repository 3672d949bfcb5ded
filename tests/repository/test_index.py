"""The index finds what looks alike among what fits, and refuses bytes that are none."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pluto_edge.errors import ConfigError, PlutoError, RepositoryError
from pluto_edge.manifest import Bundle, Manifest
from pluto_edge.repository import index
from pluto_edge.repository.folder import FolderSource
from pluto_edge.repository.index import Index, build
from tests.reference.covariance import dense
from tests.repository.modules import NOISE, signature

Make = Callable[..., Path]


@pytest.fixture
def manifest(make_bundle: Make) -> Manifest:
    return Bundle(make_bundle()).manifest


def seen(at: float, width: int, count: int = 64) -> np.ndarray:
    """Looks of images around `at`."""
    rng = np.random.default_rng(5)
    return (at + np.sqrt(NOISE) * rng.normal(size=(count, width))).astype(np.float32)


@pytest.fixture
def source(make_module: Make) -> FolderSource:
    folders = [make_module(f"at{at}", at=float(at), seed=at) for at in range(5)]
    return FolderSource(folders[0].parent)


@pytest.fixture
def index_bytes(source: FolderSource) -> bytes:
    return source.index()


def test_what_looks_alike_is_found(source: FolderSource, manifest: Manifest) -> None:
    found = Index.from_bytes(source.index())
    assert len(found) == 5 and {m.name for m in found.modules} == {f"at{i}" for i in range(5)}
    for at in range(5):
        near = found.nearest(seen(at, manifest.dims.width), 3, manifest)
        assert near[0].module.name == f"at{at}" and len(near) == 3
        assert near[0].fit > 0.9 and near[0].evidence > 0 and near[0].distance < 2
        assert near[1].fit < 0.1 and near[1].evidence < near[0].evidence
    nowhere = found.nearest(seen(40.0, manifest.dims.width), 9, manifest)
    assert len(nowhere) == 5 and max(n.fit for n in nowhere) < 0.01
    assert source.fetch(near[0].module.target).name == near[0].module.name


def test_the_same_modules_are_the_same_bytes(source: FolderSource) -> None:
    assert build(source.entries()) == build(source.entries()[::-1]) == source.index()


def test_only_what_fits_the_bundle(make_module: Make, manifest: Manifest) -> None:
    make_module("right", at=1.0)
    make_module("same", at=1.0, backbone=manifest.backbone)
    make_module("other_backbone", at=1.0, backbone="0" * 64)
    make_module("other_classes", at=1.0, classes=tuple(f"other-{i}" for i in range(7)))
    make_module("every", at=1.0, role="generalist")
    folder = make_module("other_vit", at=1.0, architecture="vit_small_patch16_224")
    found = Index.from_bytes(FolderSource(folder.parent).index())
    assert len(found) == 6
    near = found.nearest(seen(1.0, manifest.dims.width), 9, manifest)
    assert {n.module.name for n in near} == {"right", "same"}


def test_a_module_without_a_signature_is_left_out(make_store, manifest: Manifest) -> None:
    found = Index.from_bytes(FolderSource(make_store().path / "modules").index())
    assert len(found) == 0 and found.nearest(seen(0.0, manifest.dims.width), 3, manifest) == ()


def test_few_kilobytes_a_module() -> None:
    for width in (96, 384, 768):
        dims = replace(Bundle("examples/digits/bundle").manifest.dims, width=width)
        whole = replace(signature(dims), look_factor=np.random.default_rng(0).normal(size=(32, width)))
        short = index._shortened(whole)
        assert 2 * (short.look_factor.size + width) <= max(index.MODULE_BYTES, 6 * width)
        assert np.trace(dense(short.looks)) == pytest.approx(np.trace(dense(whole.looks)), rel=1e-5)


def test_a_name_that_is_another(make_module: Make) -> None:
    (entry,) = FolderSource(make_module("one").parent).entries()
    with pytest.raises(RepositoryError, match="its description says 'one'"):
        build([replace(entry, name="two")])
    with pytest.raises(ConfigError, match="'one' is there twice"):
        build([entry, entry])


def test_looks_that_are_none(source: FolderSource, manifest: Manifest) -> None:
    found = Index.from_bytes(source.index())
    for look in (np.zeros((0, manifest.dims.width)), np.zeros((3, 5)), np.zeros(manifest.dims.width)):
        with pytest.raises(ConfigError, match="look: want"):
            found.nearest(look.astype(np.float32), 3, manifest)


# Bytes from anywhere


@pytest.mark.filterwarnings("ignore::pluto_edge._schema.UnknownKeyWarning")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_bytes_are_refused_or_harmless(index_bytes: bytes, manifest: Manifest, data: st.DataObject) -> None:
    """Whatever is changed: a `PlutoError`, or an index whose answers are numbers."""
    whole = bytearray(index_bytes)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1) | st.integers(0, 1500))
        whole[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.none() | st.integers(0, len(whole)))
    try:
        found = Index.from_bytes(bytes(whole[:cut]))
        near = found.nearest(seen(1.0, manifest.dims.width), 9, manifest)
    except PlutoError:
        return
    assert all(np.isfinite([n.distance, n.fit, n.evidence]).all() for n in near)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300) | st.binary(max_size=60).map(lambda b: len(b).to_bytes(8, "little") + b))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(RepositoryError):
        Index.from_bytes(data)


@pytest.mark.parametrize(
    "old, new",
    [
        (b'\\"schema_version\\":1', b'\\"schema_version\\":7'),
        (b'\\"role\\":\\"specialist\\"', b'\\"role\\":\\"specialisT\\"'),
        (b'\\"size\\":', b'\\"sizE\\":'),
        (b'\\"name\\":\\"at1\\"', b'\\"name\\":\\"../\\"'),
        (b'"0.means"', b'"1.means"'),
        (b'\\"width\\":48', b'\\"width\\":47'),
        (b'"F32"', b'"I32"'),
    ],
)
def test_what_is_not_as_described(source: FolderSource, old: bytes, new: bytes) -> None:
    data = source.index()
    assert old in data and len(old) == len(new)
    with pytest.warns() if b"sizE" in new else nullcontext(), pytest.raises(RepositoryError, match="index"):
        Index.from_bytes(data.replace(old, new))


def test_too_large(monkeypatch: pytest.MonkeyPatch, source: FolderSource) -> None:
    monkeypatch.setattr(index, "MAX_BYTES", 100)
    with pytest.raises(RepositoryError, match="want at most 100"):
        source.index()
