"""The frozen ViT with a module plugged in, in torch: what is trained, and what graphs are checked against.

It runs timm's own patch embedding, attention and MLP; only what a module changes is written here. Tensors go
by the names of `pluto_edge.modules`.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pluto_edge.vit.backbone import layer_norms, read_layout

Params = dict[str, Tensor]


class TorchViT:
    """`embed` once an image, `logits` once a module; the backbone is never changed."""

    def __init__(self, vit: Any) -> None:
        self.vit = vit
        self.layout = read_layout(vit)
        self.eps = [norm.eps for norm in layer_norms(vit)]

    def backbone_ln(self) -> Params:
        """The affines that a module starts with."""
        norms = layer_norms(self.vit)
        return {
            "ln_scale": torch.stack([n.weight.detach() for n in norms]),
            "ln_bias": torch.stack([n.bias.detach() for n in norms]),
        }

    def embed(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """[B,3,H,W] to the tokens [B,T,d] that enter the first block, and the selector's x̂ [B,d]."""
        patches = self.vit.patch_embed(pixels)
        pooled = patches.flatten(1, -2).amax(dim=1)
        tokens = self.vit.norm_pre(self.vit._pos_embed(patches))
        return tokens, pooled

    def features(self, tokens: Tensor, module: Params) -> Tensor:
        """What the head sees, [B,d]."""
        (last,) = deque(self._blocks(tokens, module), maxlen=1)  # the others are not kept
        return self._pool_normalised(last, module)

    def activations(self, tokens: Tensor, module: Params) -> Tensor:
        """What the head would pool after each block, then what it sees: [B,L+1,d]."""
        x = tokens
        rows = []
        for x in self._blocks(tokens, module):
            rows.append(self._pool(x, module))
        return torch.stack([*rows, self._pool_normalised(x, module)], dim=1)

    def logits(self, tokens: Tensor, module: Params) -> Tensor:
        """[B,K] of a module for embedded tokens."""
        return F.linear(self.features(tokens, module), module["head_weight"], module["head_bias"])

    def _blocks(self, tokens: Tensor, module: Params) -> Iterator[Tensor]:
        """All tokens, those of a prompt after the prefix, as every block leaves them."""
        x = tokens
        prefix = self.layout.prefix
        if "prompt" in module:
            prompt = module["prompt"].expand(len(x), -1, -1)
            x = torch.cat([x[:, :prefix], prompt, x[:, prefix:]], dim=1)
        for i, block in enumerate(self.vit.blocks):
            x = x + block.ls1(block.attn(self._norm(x, module, 2 * i)))
            h = block.ls2(block.mlp(self._norm(x, module, 2 * i + 1)))
            if "down_weight" in module:
                h = h + self._adapter(h, module, i)
            x = x + h
            yield x

    def _pool(self, x: Tensor, module: Params) -> Tensor:
        """The mean of the tokens that the head looks at."""
        layout = self.layout
        first_patch = layout.prefix + (len(module["prompt"]) if "prompt" in module else 0)
        return (x[:, first_patch:] if layout.pool == "average" else x[:, : layout.pooled]).mean(dim=1)

    def _pool_normalised(self, x: Tensor, module: Params) -> Tensor:
        if self.layout.norm_after_pool:
            return self._norm(self._pool(x, module), module, -1)
        return self._pool(self._norm(x, module, -1), module)

    def _norm(self, x: Tensor, module: Params, index: int) -> Tensor:
        return F.layer_norm(x, (x.shape[-1],), module["ln_scale"][index], module["ln_bias"][index], self.eps[index])

    @staticmethod
    def _adapter(h: Tensor, module: Params, block: int) -> Tensor:
        hidden = F.gelu(h @ module["down_weight"][block] + module["down_bias"][block])
        return hidden @ module["up_weight"][block] + module["up_bias"][block]


class TorchSelector(nn.Module):
    """The selector G in torch; the same tensors as `pluto_edge.modules.SelectorWeights`."""

    def __init__(self, tensors: Params, dropout: float = 0.0) -> None:
        super().__init__()
        self.weights = nn.ParameterDict({k: nn.Parameter(v.clone()) for k, v in tensors.items()})
        self.dropout = dropout

    def forward(self, x: Tensor, logits: Tensor, withheld: Tensor | None = None) -> Tensor:
        """x̂ [B,d] and logits [B,N,K] to weights [B,N]; `withheld` modules [B,N] get none."""
        h_x, h_l = self._project(x, "x"), self._project(logits, "l")
        scores = torch.einsum("bd,bnd->bn", h_x, h_l)
        return (scores if withheld is None else scores.masked_fill(withheld, -torch.inf)).softmax(dim=-1)

    def _project(self, value: Tensor, side: str) -> Tensor:
        w = self.weights
        hidden = F.dropout(F.silu(value @ w[f"down_{side}"]), self.dropout, self.training)
        out = hidden @ w[f"up_{side}"]
        return F.layer_norm(out, (out.shape[-1],), w[f"scale_{side}"], w[f"bias_{side}"])
