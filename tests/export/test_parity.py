"""What an export is compared with: a reference that is right where single precision is not, and away from steps."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file, save_file

from pluto_edge import tolerances
from pluto_edge.export.exporter import run_export
from pluto_edge.export.parity import TorchReference
from pluto_edge.manifest import Bundle
from pluto_edge.modules import LN_BIAS, LN_SCALE
from pluto_edge.store import Store
from pluto_edge.vit.backbone import load_backbone
from pluto_edge.vit.torch_vit import TorchViT


@pytest.mark.parametrize("times", [4, 12, 30])
def test_modules_that_are_very_sure_are_exported(
    make_store: Callable[..., Store], tmp_path: Path, times: float
) -> None:
    """Their entropies are nearly 0, where autograd's gradient in single precision is off by whole percents."""
    shutil.copytree(make_store().path, tmp_path / "store")
    for file in tmp_path.glob("store/modules/*/adapter_model.safetensors"):
        tensors = load_file(file)
        save_file({**tensors, "head_weight": times * tensors["head_weight"]}, file)
    run_export(tmp_path / "store", tmp_path / "bundle")
    assert all(entry.passed for entry in Bundle(tmp_path / "bundle").manifest.parity)


def reference(store: Store, tokens: torch.Tensor, head: float = 1.0) -> TorchReference:
    vit = TorchViT(load_backbone(store))
    module = {k: torch.from_numpy(v) for k, v in store.load_module(store.names[0]).tensors.items()}
    module = {**vit.backbone_ln(), **module}
    return TorchReference(vit, tokens, {**module, "head_weight": head * module["head_weight"]})


def embedded(store: Store, count: int) -> torch.Tensor:
    pixels = torch.randn(count, 3, *store.config.preprocessing.size, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        return TorchViT(load_backbone(store)).embed(pixels)[0].clone()


def test_the_threshold_is_in_the_widest_gap(make_store: Callable[..., Store]) -> None:
    store = make_store()
    found = reference(store, embedded(store, 6))
    order = found.entropy.sort().values
    threshold = found.entropy_alone()["threshold"]
    distances = (order - threshold).abs()
    assert 0 < int((order < threshold).sum()) < 6
    assert float(distances.min()) == pytest.approx(float(order.diff().max()) / 2, rel=1e-4)


def test_samples_that_are_alike_all_count(make_store: Callable[..., Store]) -> None:
    """Between equal entropies rounding would decide who counts."""
    store = make_store()
    found = reference(store, embedded(store, 1).repeat(4, 1, 1))
    assert float(found.entropy.max() - found.entropy.min()) < tolerances.ENTROPY_GAP
    assert bool((found.entropy < found.entropy_alone()["threshold"]).all())


def test_the_reference_is_right_where_a_module_is_very_sure(make_store: Callable[..., Store]) -> None:
    """Against the same in double precision from the first block to the last."""
    store = make_store()
    tokens = embedded(store, 1)
    single = reference(store, tokens, head=30)
    backbone = TorchViT(load_backbone(store).double())
    module = {k: torch.from_numpy(v).double() for k, v in store.load_module(store.names[0]).tensors.items()}
    module = {**backbone.backbone_ln(), **module, "head_weight": 30 * module["head_weight"]}
    double = TorchReference(backbone, tokens.double(), module)
    assert float(single.entropy.max()) < 0.05
    terms = single.entropy_alone()
    got = single.gradients(terms)
    want = double.gradients({k: v.double() for k, v in terms.items()})
    for name in (f"{LN_SCALE}_grad", f"{LN_BIAS}_grad"):
        assert tolerances.relative_error(got[name], want[name]) < tolerances.GRADIENT
