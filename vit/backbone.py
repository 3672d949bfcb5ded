"""timm Vision Transformers: load one, read its layout, refuse what cannot be compiled."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit
from urllib.request import getproxies

from pluto_edge.errors import BackboneError, MissingExtraError

try:
    import torch
    from torch import nn
except ImportError as cause:
    raise MissingExtraError("torch", "export") from cause

import pluto_edge.vit.torchvision_shim  # noqa: F401  isort: skip

try:
    import timm
    from timm.data import resolve_model_data_config
    from timm.layers import GluMlp, LayerScale, Mlp, PatchEmbed, SwiGLU
    from timm.layers.attention import Attention
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.vision_transformer import Block, VisionTransformer, checkpoint_filter_fn
except ImportError as cause:
    raise MissingExtraError("timm", "export") from cause

from safetensors import SafetensorError
from safetensors.torch import load_file

from pluto_edge.preprocess import Preprocessing
from pluto_edge.store import Store, check_options

PATIENCE = 5.0  # seconds for the hub to answer

Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "silu", "relu"]
Pool = Literal["token", "distilled", "average"]

_ACTIVATIONS: dict[str, Activation] = {
    "GELU": "gelu",
    "GELUTanh": "gelu_tanh",
    "GeluTanh": "gelu_tanh",
    "QuickGELU": "quick_gelu",
    "SiLU": "silu",
    "Swish": "silu",
    "ReLU": "relu",
}


@dataclass(frozen=True)
class Layout:
    """What the graphs need to know of a ViT beside its weights."""

    width: int
    depth: int
    prefix: int
    patches: int
    pool: Pool
    norm_after_pool: bool

    @property
    def tokens(self) -> int:
        """Tokens of an image, prefix and patches together."""
        return self.prefix + self.patches

    @property
    def pooled(self) -> int:
        """How many tokens the head looks at: the last block computes no others."""
        return {"token": 1, "distilled": 2, "average": self.patches}[self.pool]


def create(
    architecture: str, size: tuple[int, int], options: dict[str, Any], pretrained: str | None = None
) -> nn.Module:
    """A timm ViT without a head, for images of `size`, in evaluation mode; random unless `pretrained`."""
    name = f"{architecture}.{pretrained}" if pretrained else architecture
    if architecture.partition(".")[0] not in timm.list_models():
        raise BackboneError(f"{architecture!r} is not a timm model; see timm.list_models('*vit*')")
    try:
        check_options(options)
        with _hub_or_cache() if pretrained else nullcontext():
            vit = timm.create_model(
                name, pretrained=pretrained is not None, num_classes=0, img_size=size, **options
            )
    except (TypeError, ValueError, AssertionError, KeyError, RuntimeError) as cause:
        if pretrained and isinstance(cause, RuntimeError):
            raise _no_download(name, cause) from cause
        raise BackboneError(f"timm cannot build {name} at {size} with {options}: {cause}") from cause
    except OSError as cause:
        raise _no_download(name, cause) from cause
    check_supported(vit, name)
    return vit.eval().float().requires_grad_(False)  # type: ignore[no-any-return]


def load_backbone(store: Store) -> nn.Module:
    """The backbone of a store, with its weights."""
    config = store.config.backbone
    vit = create(config.architecture, store.config.preprocessing.size, config.options, config.pretrained)
    if config.pretrained is None:
        load_weights(vit, store.backbone_file)
    layout = read_layout(vit)
    if (layout.width, layout.depth) != (config.width, config.depth):
        raise BackboneError(
            f"{config.architecture} has width {layout.width} and depth {layout.depth}, "
            f"store.json says {config.width} and {config.depth}"
        )
    return vit


def load_weights(vit: nn.Module, file: Path) -> None:
    """Load a safetensors checkpoint, of this very ViT or of any form that timm can convert to it."""
    if not file.is_file():
        raise BackboneError(f"{file}: the backbone's weights are missing")
    try:
        state = load_file(file)
    except (SafetensorError, OSError) as cause:
        raise BackboneError(f"{file}: not a whole safetensors file ({cause})") from cause
    own = vit.state_dict()
    if any(k not in state or state[k].shape != v.shape for k, v in own.items()):
        try:
            state = checkpoint_filter_fn(state, vit)
        except (KeyError, RuntimeError, ValueError, IndexError) as cause:
            raise BackboneError(f"{file}: not weights of this backbone ({cause})") from cause
    state = {k: v.float() for k, v in state.items() if not k.startswith(("head.", "head_dist."))}
    for key, value in own.items():
        if key not in state:
            raise BackboneError(f"{file}: tensor {key!r} is missing")
        if state[key].shape != value.shape:
            raise BackboneError(f"{file}: {key}: want shape {list(value.shape)}, got {list(state[key].shape)}")
        if not torch.isfinite(state[key]).all():
            raise BackboneError(f"{file}: {key}: holds NaN or infinity")
    vit.load_state_dict({k: state[k] for k in own})


def preprocessing(vit: nn.Module, size: tuple[int, int]) -> Preprocessing:
    """timm's data configuration of this backbone, at the image size in use."""
    config = resolve_model_data_config(vit)
    return Preprocessing(
        size=size,
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        interpolation=config["interpolation"],
        crop_pct=config["crop_pct"],
        crop_mode=config.get("crop_mode") or "center",
    )


def read_layout(vit: Any) -> Layout:
    """What the graphs need to know of this ViT."""
    distilled = isinstance(vit, VisionTransformerDistilled)
    pool: Pool = "distilled" if distilled else "token" if vit.global_pool == "token" else "average"
    return Layout(
        width=vit.embed_dim,
        depth=len(vit.blocks),
        prefix=vit.num_prefix_tokens,
        patches=vit.patch_embed.num_patches,
        pool=pool,
        norm_after_pool=not isinstance(vit.fc_norm, nn.Identity),
    )


def final_norm(vit: Any) -> nn.LayerNorm:
    """The last LayerNorm, before or after pooling."""
    norm: nn.LayerNorm = vit.norm if isinstance(vit.norm, nn.LayerNorm) else vit.fc_norm
    return norm


def layer_norms(vit: Any) -> list[nn.LayerNorm]:
    """The 2L+1 LayerNorms whose affines a module owns, in the order of `ln_scale` and `ln_bias`."""
    return [norm for block in vit.blocks for norm in (block.norm1, block.norm2)] + [final_norm(vit)]


def activation(module: nn.Module) -> Activation | None:
    """The activation's name in the graphs, or None when there is no such operator."""
    if isinstance(module, nn.GELU):
        return "gelu_tanh" if module.approximate == "tanh" else "gelu"
    return _ACTIVATIONS.get(type(module).__name__)


def check_supported(vit: Any, name: str) -> None:
    """Refuse, by name and with the reason, what the graphs do not express."""

    def refuse(reason: str) -> BackboneError:
        return BackboneError(f"{name} is not supported: {reason}")

    if type(vit) not in (VisionTransformer, VisionTransformerDistilled):
        raise refuse(f"it is a {type(vit).__name__}; timm's VisionTransformer family is compiled")
    if type(vit.patch_embed) is not PatchEmbed or not isinstance(vit.patch_embed.norm, nn.Identity):
        raise refuse("its patch embedding is not one convolution")
    if vit.patch_embed.proj.in_channels != 3:
        raise refuse(f"it takes {vit.patch_embed.proj.in_channels} channels; images here have 3")
    if getattr(vit.patch_embed, "dynamic_img_pad", False):
        raise refuse("dynamic_img_pad; give an image size that its patches divide")
    if vit.global_pool not in ("token", "avg"):
        raise refuse(f"its pooling is {vit.global_pool!r}; class token and average are compiled")
    if vit.global_pool == "avg" and getattr(vit, "pool_include_prefix", False):
        raise refuse("it averages prefix tokens too (pool_include_prefix)")
    norms = [n for n in (vit.norm, vit.fc_norm) if not isinstance(n, nn.Identity)]
    if len(norms) != 1:
        raise refuse(f"it has {len(norms)} final norms; the method adapts exactly one")
    for block in vit.blocks:
        _check_block(block, refuse)
    for norm in [*layer_norms(vit), vit.norm_pre]:
        if not isinstance(norm, nn.LayerNorm | nn.Identity):
            raise refuse(f"its norm is {type(norm).__name__}; LayerNorm is compiled")


def _check_block(block: Any, refuse: Any) -> None:
    if type(block) is not Block:
        raise refuse(f"its block is a {type(block).__name__} (parallel or post-norm blocks are not compiled)")
    attn, mlp = block.attn, block.mlp
    if type(attn) is not Attention:
        raise refuse(f"its attention is {type(attn).__name__}")
    if getattr(attn, "gate", None) is not None or not isinstance(attn.norm, nn.Identity):
        raise refuse("its attention output is gated or normalised (scale_attn_norm)")
    for norm in (attn.q_norm, attn.k_norm):
        if not isinstance(norm, nn.LayerNorm | nn.Identity):
            raise refuse(f"its query-key norm is {type(norm).__name__}; LayerNorm is compiled")
    if type(mlp) not in (Mlp, GluMlp, SwiGLU):
        raise refuse(f"its MLP is {type(mlp).__name__}")
    if not isinstance(mlp.norm, nn.Identity):
        raise refuse("its MLP has a norm inside (scale_mlp_norm)")
    if activation(mlp.act) is None:
        raise refuse(f"its activation is {type(mlp.act).__name__}")
    for scale in (block.ls1, block.ls2):
        if not isinstance(scale, LayerScale | nn.Identity):
            raise refuse(f"its layer scale is {type(scale).__name__}")


@contextmanager
def _hub_or_cache() -> Iterator[None]:
    """Where the hub cannot be reached, what was loaded before serves, and what was not fails at once: its client
    would try again for a minute."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not _reachable(constants.ENDPOINT)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _reachable(address: str) -> bool:
    if getproxies():
        return True  # the proxy knows
    parts = urlsplit(address)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 443), timeout=PATIENCE):
            return True
    except OSError:
        return False


def _no_download(name: str, cause: Exception) -> BackboneError:
    return BackboneError(
        f"timm could not load the pretrained weights of {name}: they are not in the cache, and could not be "
        f"downloaded ({type(cause).__name__}). Connect to the network once, or download the weights elsewhere and "
        "give them with --weights FILE.safetensors; in a store they are backbone.safetensors beside store.json, "
        "with backbone.pretrained null"
    )
