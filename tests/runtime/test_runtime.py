"""Predictions against torch, the blend, and bundles that lie."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from PIL import Image

from pluto_edge import Bundle, Runtime, manifest
from pluto_edge._schema import UnknownKeyWarning
from pluto_edge.errors import BundleError, ConfigError, ImageError, ProviderError
from pluto_edge.modules import Kind
from pluto_edge.preprocess import ImageBatch
from pluto_edge.store import Store
from pluto_edge.vit.backbone import load_backbone
from pluto_edge.vit.torch_vit import TorchSelector, TorchViT
from tests.bundles import edit, seal

LOGITS_ABSOLUTE = 1e-4  # what the project promises of predictions, in logits


@torch.no_grad()
def torch_prediction(store: Store, frames: np.ndarray, top_m: int | None) -> tuple[np.ndarray, np.ndarray]:
    """The paper's formulas in torch: logits of every module, weights, top M by batch mean, rescaled."""
    vit = TorchViT(load_backbone(store))
    pixels = torch.from_numpy(ImageBatch(frames, store.config.preprocessing)[0 : len(frames)])
    tokens, x_hat = vit.embed(pixels)
    modules = [store.load_module(n).tensors for n in store.names]
    tensors = [{**vit.backbone_ln(), **{k: torch.from_numpy(v) for k, v in m.items()}} for m in modules]
    logits = torch.stack([vit.logits(tokens, m) for m in tensors], dim=1)
    g = TorchSelector({k: torch.from_numpy(v) for k, v in store.load_selector().tensors.items()})
    weight = g(x_hat, logits)
    keep = weight.mean(0).topk(top_m or weight.shape[1]).indices
    mask = torch.zeros_like(weight)
    mask[:, keep] = weight[:, keep]
    mask = mask / mask.sum(1, keepdim=True)
    return (mask[:, :, None] * logits).sum(1).numpy(), mask.numpy()


@pytest.mark.parametrize("top_m", [None, 1, 2, 3, 99])
def test_predictions_equal_torch(
    make_store: Callable[..., Store],
    make_bundle: Callable[..., Path],
    frames: np.ndarray,
    kind: Kind,
    top_m: int | None,
) -> None:
    got = Runtime(make_bundle(kind), top_m=top_m).predict(frames)
    want_logits, want_weights = torch_prediction(make_store(kind), frames, min(top_m, 3) if top_m else None)
    assert np.abs(got.logits - want_logits).max() < LOGITS_ABSOLUTE
    np.testing.assert_allclose(got.weights, want_weights, atol=1e-4)
    np.testing.assert_array_equal(got.labels, want_logits.argmax(1))
    assert len(got.selected) == min(top_m or 3, 3)


def test_prediction_is_consistent(make_bundle: Callable[..., Path], frames: np.ndarray) -> None:
    runtime = Runtime(make_bundle())
    p = runtime.predict(frames)
    assert len(p) == len(frames)
    assert p.classes == tuple(runtime.classes[i] for i in p.labels)
    np.testing.assert_allclose(p.probabilities.sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(p.entropy, -(p.probabilities * np.log(p.probabilities)).sum(1), rtol=1e-4)
    np.testing.assert_allclose(p.weights.sum(1), 1, rtol=1e-5)
    assert set(p.selected) == set(p.modules) == set(runtime.modules)


def test_predicting_changes_nothing(make_bundle: Callable[..., Path], frames: np.ndarray) -> None:
    runtime = Runtime(make_bundle())
    first = runtime.predict(frames)
    runtime.predict(frames[:1])
    np.testing.assert_array_equal(runtime.predict(frames).logits, first.logits)


def test_micro_batches_do_not_show(make_bundle: Callable[..., Path], frames: np.ndarray) -> None:
    runtime = Runtime(make_bundle())
    want = runtime.predict(frames)
    for size in (1, 3, 64):
        runtime.learner.network.graphs.micro_batch = size
        np.testing.assert_allclose(runtime.predict(frames).logits, want.logits, atol=1e-5)


def test_images_in_every_form(make_bundle: Callable[..., Path], frames: np.ndarray) -> None:
    runtime = Runtime(make_bundle())
    want = runtime.predict(frames[:1]).logits
    floats = ImageBatch(frames[:1], runtime.manifest.preprocessing)[0:1]
    for form in (frames[0], [frames[0]], Image.fromarray(frames[0]), [Image.fromarray(frames[0])], floats):
        np.testing.assert_allclose(runtime.predict(form).logits, want, atol=1e-6)
    with pytest.raises(ImageError):
        runtime.predict([])


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_other_precisions_predict(make_bundle: Callable[..., Path], frames: np.ndarray, precision: str) -> None:
    small, plain = Runtime(make_bundle(precision=precision)), Runtime(make_bundle())
    assert np.abs(small.predict(frames).probabilities - plain.predict(frames).probabilities).max() < 0.2
    if precision == "int8":
        with pytest.raises(ProviderError, match="int8"):
            Runtime(make_bundle(precision=precision), providers="cuda")


def test_bad_arguments(make_bundle: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match="top_m"):
        Runtime(make_bundle(), top_m=0)
    assert "3 modules" in repr(Runtime(make_bundle()))


def test_damage_is_found(broken: Path) -> None:
    weights = broken / "weights.bin"
    whole = bytearray(weights.read_bytes())
    whole[5000] ^= 1
    weights.write_bytes(whole)
    with pytest.raises(BundleError, match=r"weights\.bin was changed"):
        Runtime(broken)
    Runtime(broken, verify=False)
    weights.write_bytes(whole[:-1])
    for verify in (True, False):
        with pytest.raises(BundleError, match=r"weights\.bin has .* truncated"):
            Runtime(broken, verify=verify)
    weights.unlink()
    with pytest.raises(BundleError, match=r"weights\.bin is missing"):
        Runtime(broken)


def test_damage_is_found_behind_the_graphs(broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes of large files are computed while graphs are opened; nothing is predicted before they are right."""
    monkeypatch.setattr(manifest, "LARGE", 1000)
    Runtime(broken)
    whole = bytearray((broken / "weights.bin").read_bytes())
    whole[5000] ^= 1
    (broken / "weights.bin").write_bytes(whole)
    with pytest.raises(BundleError, match=r"weights\.bin was changed"):
        Runtime(broken)
    Runtime(broken, verify=False)
    with pytest.raises(BundleError, match=r"weights\.bin was changed"):
        Bundle(broken)
    bundle = Bundle(broken, wait=False)
    for _ in range(2):
        with pytest.raises(BundleError, match=r"weights\.bin was changed"):
            bundle.wait()


def test_not_a_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"no manifest\.json"):
        Runtime(tmp_path)
    with pytest.raises(BundleError, match="not a bundle"):
        Runtime(tmp_path / "absent")


HOSTILE: dict[str, tuple[Callable[[dict], object], str]] = {
    "newer": (lambda m: m.update(schema_version=7), "newer.*pip install --upgrade"),
    "older": (
        lambda m: m.update(schema_version=1),
        "schema version 1.*pluto-export --modules STORE --out .* --force",
    ),
    "not a number": (lambda m: m.update(schema_version=True), "schema_version"),
    "huge width": (lambda m: m["dims"].update(width=10**12), "beyond"),
    "huge prompts": (lambda m: m["dims"].update(size=10**9), "beyond"),
    "huge image": (lambda m: m["preprocessing"].update(size=[10**6, 10**6]), "size"),
    "huge file size": (lambda m: m["files"]["weights.bin"].update(size=10**18), "the manifest says"),
    "negative file size": (lambda m: m["files"]["weights.bin"].update(size=-1), "not a sha256 and a size"),
    "other width": (lambda m: m["dims"].update(width=49), "the manifest says"),
    "other depth": (lambda m: m["dims"].update(depth=4), "the manifest says"),
    "other prompts": (lambda m: m["dims"].update(size=5), "the manifest says"),
    "other kind": (lambda m: m["dims"].update(kind="adapter"), "is missing|should have"),
    "no tokens": (lambda m: m.update(tokens=0), "tokens: want 1 to"),
    "other tokens": (lambda m: m.update(tokens=20), "the manifest says"),
    "other image size": (lambda m: m["preprocessing"].update(size=[48, 32]), "the manifest says"),
    "huge crop": (lambda m: m["preprocessing"].update(size=[4096, 4096], crop_pct=0.05), "crop_pct"),
    "long name": (lambda m: m["files"].update({"x" * 300: m["files"]["weights.bin"]}), "cannot be the path"),
    "no text": (lambda m: m["files"].update({"\ud800": m["files"]["weights.bin"]}), "files: want text"),
    "leaves the folder": (
        lambda m: m["files"].update({"../../etc/passwd": m["files"]["weights.bin"]}),
        "not a path inside",
    ),
    "absolute": (
        lambda m: m["files"].update({"/etc/passwd": m["files"]["weights.bin"]}),
        "not a path inside",
    ),
    "module leaves": (lambda m: m["modules"][0].update(name="../x"), "not a safe name"),
    "same module twice": (lambda m: m["modules"].append(m["modules"][0]), "there twice"),
    "many modules": (
        lambda m: m["modules"].extend({"name": f"m{i}"} for i in range(50_000)),
        "not listed",
    ),
    "no modules": (lambda m: m.update(modules=[]), "at least one module"),
    "text for a list": (lambda m: m.update(modules="abc"), "modules: want a list"),
    "classes": (lambda m: m.update(classes=["a"]), "1 names for 7 classes"),
    "class twice": (lambda m: m["classes"].__setitem__(1, "class-0"), "'class-0' is there twice"),
    "wrong type": (lambda m: m.update(dims=3), "dims: want an object"),
    "std": (lambda m: m["preprocessing"].update(std=[0, 0, 0]), "std"),
    "missing key": (lambda m: m.pop("precision"), "'precision' is missing"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_manifest(broken: Path, case: str) -> None:
    change, message = HOSTILE[case]
    edit(broken, change)  # type: ignore[arg-type]
    with pytest.raises(BundleError, match=message):
        Runtime(broken)


def test_unknown_manifest_key_warns(broken: Path) -> None:
    edit(broken, lambda m: m.update(colour="blue"))
    with pytest.warns(UnknownKeyWarning, match="colour"):
        Runtime(broken)


def test_symbolic_links_cannot_leave(broken: Path, tmp_path: Path) -> None:
    shutil.move(broken / "weights.bin", tmp_path / "weights.bin")
    (broken / "weights.bin").symlink_to(tmp_path / "weights.bin")
    with pytest.raises(BundleError, match="leads outside"):
        Runtime(broken)


def test_a_graph_that_reads_outside_the_bundle_is_refused(broken: Path) -> None:
    """The manifest's checksums are right; it is the graph that points elsewhere."""
    (broken.parent / "secret.bin").write_bytes((broken / "weights.bin").read_bytes())
    graph = broken / "embed.onnx"
    model = onnx.load(graph, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../secret.bin"
    onnx.save(model, graph)
    seal(broken, "embed.onnx")
    with pytest.raises(BundleError, match="cannot load this graph"):
        Runtime(broken)


def test_links_in_a_circle(broken: Path) -> None:
    (broken / "weights.bin").unlink()
    (broken / "weights.bin").symlink_to("weights.bin")
    with pytest.raises(BundleError, match="cannot be the path"):
        Runtime(broken)


def test_a_module_file_that_is_swapped(broken: Path) -> None:
    bundle = Bundle(broken)
    assert bundle.load_module("domain-0").name == "domain-0"
    with pytest.raises(BundleError, match="no module 'absent'"):
        bundle.load_module("absent")
    (broken / "modules/domain-0.safetensors").write_bytes(b"\xff" * 8 + b"{" * 100)
    with pytest.raises(BundleError, match="not a whole safetensors file"):
        bundle.load_module("domain-0")
