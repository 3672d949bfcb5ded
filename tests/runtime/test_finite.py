"""What is predicted is always numbers: a module that says NaN is left out, and where all do, an error says so."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pluto_edge import AdaptConfig, NotFiniteError, Preprocessing, Runtime
from pluto_edge._files import sha256
from pluto_edge.errors import BundleError, ConfigError
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.engine.affines import Affines
from pluto_edge.train.signature import make_signature

NAMES = ("domain-0", "domain-1", "domain-2")
CONFIG = AdaptConfig(continuity=False, selector_lr=0.02, ln_lr=0.01, entropy_margin=0.95)


def rewrite(bundle: Path, name: str, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    """A module's tensors, with checksums that are right."""
    relative = f"modules/{name}.safetensors"
    tensors = load_file(bundle / relative)
    change(tensors)
    save_file(tensors, bundle / relative)
    manifest = json.loads((bundle / "manifest.json").read_text())
    entry = {"sha256": sha256(bundle / relative), "size": (bundle / relative).stat().st_size}
    manifest["files"][relative] = entry
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def spoil(bundle: Path, names: Sequence[str]) -> None:
    for name in names:
        rewrite(bundle, name, lambda t: t["head_weight"].fill(3e38))


def sign(bundle: Path) -> None:
    """Signatures for all modules, and the first becomes the generalist: predictions go beyond the paper."""
    runtime, rng = Runtime(bundle), np.random.default_rng(0)
    images = rng.standard_normal((64, 3, 40, 32)).astype(np.float32)
    passed = runtime.learner.network.run(ImageBatch(images, runtime.manifest.preprocessing), {}, activations=True)
    for column, name in enumerate(NAMES):

        def change(tensors: dict[str, np.ndarray], column: int = column) -> None:
            head, bias = tensors["head_weight"], tensors["head_bias"]
            labels = np.arange(64) % 7
            tensors |= make_signature(passed.activations[:, column], labels, head, bias, passed.x_hat).tensors  # type: ignore[index]

        rewrite(bundle, name, change)
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["modules"][0]["role"] = "generalist"
    (bundle / "manifest.json").write_text(json.dumps(manifest))


@pytest.fixture(params=["paper", "beyond"])
def bundle(request: pytest.FixtureRequest, make_bundle: Callable[..., Path], tmp_path: Path) -> Path:
    shutil.copytree(make_bundle(), tmp_path / "bundle")
    if request.param == "beyond":
        sign(tmp_path / "bundle")
    return tmp_path / "bundle"


def sound(prediction: object) -> bool:
    arrays = [getattr(prediction, n) for n in ("probabilities", "logits", "weights", "entropy")]
    return all(np.isfinite(a).all() for a in arrays)


@pytest.mark.parametrize("bad", [NAMES[:1], NAMES[1:2], NAMES[:2], NAMES[1:]])
def test_modules_that_are_not_finite_are_left_out(bundle: Path, frames: np.ndarray, bad: Sequence[str]) -> None:
    spoil(bundle, bad)
    runtime = Runtime(bundle, config=CONFIG)
    for _ in range(3):
        prediction = runtime.predict(frames)
        assert sound(prediction) and not set(prediction.selected) & set(bad)
        np.testing.assert_allclose(prediction.weights.sum(axis=1), 1, atol=1e-6)
        assert prediction.modules == NAMES
    told = [e.reason for e in runtime.events]
    assert all("is left out: what it says is not finite" in r for r in told)
    assert len(told) == len(set(told))  # once, not with every prediction
    for _ in range(3):
        assert sound(runtime.step(frames))
    assert [e.kind for e in runtime.events if e.kind in ("step", "gather")]  # the others still learn
    with runtime.stream(batch=4, background=False) as stream:
        assert all(sound(stream(f)) for f in frames)
    runtime.close()


def test_one_that_is_finite_is_as_if_alone(
    make_bundle: Callable[..., Path], tmp_path: Path, frames: np.ndarray
) -> None:
    shutil.copytree(make_bundle(), tmp_path / "bundle")
    want = Runtime(tmp_path / "bundle")
    want.remove_module("domain-1")
    expected = want.predict(frames).logits
    spoil(tmp_path / "bundle", ["domain-1"])
    np.testing.assert_allclose(Runtime(tmp_path / "bundle").predict(frames).logits, expected, atol=1e-5)


def test_where_all_modules_are_not_finite_it_is_an_error(bundle: Path, frames: np.ndarray) -> None:
    spoil(bundle, NAMES)
    runtime = Runtime(bundle, config=CONFIG)
    before = runtime.learner.state
    with pytest.raises(NotFiniteError, match="domain-0"):
        runtime.predict(frames)
    with pytest.raises(NotFiniteError):
        runtime.step(frames)
    assert runtime.events[-1].kind == "rollback"
    assert runtime.learner.state.affines == before.affines


def test_huge_pixels_are_an_error_and_leave_no_trace(bundle: Path, frames: np.ndarray) -> None:
    runtime = Runtime(bundle, config=CONFIG)
    for _ in range(2):
        runtime.step(frames)
    state, want = runtime.learner.state, runtime.predict(frames).logits
    huge = np.full((2, 3, 40, 32), 3e38, np.float32)
    with pytest.raises(NotFiniteError):
        runtime.predict(huge)
    with pytest.raises(NotFiniteError):
        runtime.step(huge)
    with runtime.stream(batch=2, background=False) as stream:
        with pytest.raises(NotFiniteError):
            stream(huge[:1])
        assert all(sound(stream(f)) for f in frames)
    np.testing.assert_array_equal(runtime.predict(frames).logits, want)
    assert runtime.learner.state.affines is state.affines and runtime.learner.state.selector is state.selector
    runtime.close()


def test_what_was_learned_is_taken_back_where_nothing_is_finite(bundle: Path, frames: np.ndarray) -> None:
    runtime = Runtime(bundle, config=CONFIG)
    want = Runtime(bundle, config=CONFIG).predict(frames).logits
    huge = np.full((7, 48), 3e38, np.float32)
    runtime.learner.state = replace(runtime.learner.state, affines={n: Affines(huge, huge) for n in NAMES})
    got = runtime.step(frames)
    assert runtime.events[-1].kind == "rollback" and "not finite" in runtime.events[-1].reason
    assert not runtime.learner.state.affines and sound(got)
    np.testing.assert_allclose(got.logits, want, atol=1e-4)


@pytest.mark.parametrize("change", [{"std": (1e-300, 1.0, 1.0)}, {"mean": (0.0, 1e300, 0.0)}])
def test_constants_that_make_no_numbers(
    make_bundle: Callable[..., Path], tmp_path: Path, change: dict[str, tuple[float, ...]]
) -> None:
    values = {"size": (20, 16), "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), **change}
    with pytest.raises(ConfigError, match="mean and std"):
        Preprocessing(**values)  # type: ignore[arg-type]
    shutil.copytree(make_bundle(), tmp_path / "bundle")
    manifest = json.loads((tmp_path / "bundle/manifest.json").read_text())
    manifest["preprocessing"].update(change)
    (tmp_path / "bundle/manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="mean and std"):
        Runtime(tmp_path / "bundle")
