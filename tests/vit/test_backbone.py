"""What is refused by name, and weights from elsewhere."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pluto_edge.errors import BackboneError
from pluto_edge.vit.backbone import create, load_weights, read_layout
from tests.export.test_backbones import TINY, VIT, shake


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("eva02_tiny_patch14_224", {}, "it is a Eva"),
        ("vit_small_patch16_18x2_224", {"depth": 2}, "its block is a ParallelThingsBlock"),
        ("vit_base_patch16_siglip_224", {"depth": 1}, "its pooling is 'map'"),
        ("vit_small_r26_s32_224", {"depth": 1}, "patch embedding is not one convolution"),
        (VIT, {"in_chans": 1}, "it takes 1 channels"),
        (VIT, {"global_pool": "max"}, "its pooling is 'max'"),
        (VIT, {"global_pool": "avg", "pool_include_prefix": True}, "prefix tokens too"),
        (VIT, {"final_norm": False}, "0 final norms"),
        (VIT, {"scale_mlp_norm": True}, "its MLP has a norm inside"),
        (VIT, {"scale_attn_norm": True}, "attention output is gated or normalised"),
        (VIT, {"norm_layer": "rmsnorm"}, "RmsNorm"),
        (VIT, {"act_layer": "mish"}, "its activation is Mish"),
        (VIT, {"attn_layer": "diff"}, "its attention is DiffAttention"),
        (VIT, {"dynamic_img_size": True, "dynamic_img_pad": True}, "dynamic_img_pad"),
        ("resnet18", {}, "timm cannot build"),
        ("vit_of_dreams", {}, "not a timm model"),
        (VIT, {"colour": 3}, "timm cannot build"),
    ],
)
def test_refused_by_name_with_the_reason(name: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(BackboneError, match=reason) as caught:
        create(name, (224, 224), options)
    assert name in str(caught.value)


def test_image_size_that_patches_do_not_divide() -> None:
    """timm cuts such an image; the layout says how many patches are left."""
    assert read_layout(create(VIT, (40, 40), TINY)).patches == 4


def test_pretrained_tag_offline() -> None:
    with pytest.raises(BackboneError, match=r"could not load the pretrained weights.*backbone\.safetensors"):
        create(VIT, (224, 224), {}, pretrained="augreg_in21k_ft_in1k")
    with pytest.raises(BackboneError, match="no_such_tag"):
        create(VIT, (224, 224), {}, pretrained="no_such_tag")


def test_weights_of_another_size_are_resampled(tmp_path: Path) -> None:
    big, small = shake(create(VIT, (64, 64), TINY)), create(VIT, (32, 32), TINY)
    save_file(big.state_dict(), tmp_path / "w.safetensors")
    load_weights(small, tmp_path / "w.safetensors")
    torch.testing.assert_close(small.blocks[0].attn.qkv.weight, big.blocks[0].attn.qkv.weight)
    assert small.pos_embed.shape == (1, 5, 48)
    torch.testing.assert_close(small.pos_embed[:, :1], big.pos_embed[:, :1])


def test_wrong_weights(tmp_path: Path) -> None:
    vit, file = shake(create(VIT, (32, 32), TINY)), tmp_path / "w.safetensors"
    with pytest.raises(BackboneError, match="missing"):
        load_weights(vit, file)
    file.write_bytes(b"rubbish")
    with pytest.raises(BackboneError, match="not a whole safetensors file"):
        load_weights(vit, file)
    state = vit.state_dict()
    save_file({k: v for k, v in state.items() if k != "norm.bias"}, file)
    with pytest.raises(BackboneError, match=r"'norm\.bias' is missing"):
        load_weights(vit, file)
    save_file({**state, "norm.bias": torch.zeros(3)}, file)
    with pytest.raises(BackboneError, match=r"norm\.bias: want shape"):
        load_weights(vit, file)
    save_file({**state, "norm.bias": torch.full((48,), torch.nan)}, file)
    with pytest.raises(BackboneError, match=r"norm\.bias: holds NaN"):
        load_weights(vit, file)
