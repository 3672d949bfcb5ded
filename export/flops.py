"""How many operations an image costs in each graph: two for every multiply and add of a matrix product.

Norms, activations, softmax and sums are left out: they are few, and `pluto bench` compares with the peak of matrix
products. The exporter writes the counts into the manifest, because it has the backbone's own widths at hand, which
a device would have to find in the graphs.
"""

from math import prod
from typing import Any

from pluto_edge.manifest import Flops
from pluto_edge.modules import Dims
from pluto_edge.vit.backbone import read_layout


def count_flops(vit: Any, dims: Dims, learn_from: int = 0) -> Flops:
    """Of one image, in graphs of this ViT for modules of these dims, whose gradient ends at block `learn_from`.

    The last block computes only the tokens that the head looks at, but keys and values of all of them. `adapt` goes
    forward, and back through every product for its input alone, since weights take no gradient: a layer costs once
    more, attention, whose two products have two inputs each, twice more.
    """
    layout = read_layout(vit)
    tokens = layout.tokens + (dims.size if dims.kind == "vpt" else 0)
    rows = [*[tokens] * (layout.depth - 1), layout.pooled]
    head = 2 * dims.width * dims.classes
    forward = head
    backward = head
    for index, (block, computed) in enumerate(zip(vit.blocks, rows, strict=True)):
        attention = 4 * block.attn.num_heads * block.attn.head_dim * tokens * computed
        layers = _layers(block, tokens, computed)
        if dims.kind == "adapter":
            layers += 4 * dims.width * dims.size * computed
        forward += layers + attention
        backward += layers + 2 * attention if index >= learn_from else 0
    kernel = vit.patch_embed.proj.weight
    return Flops(
        embed=2 * layout.patches * prod(kernel.shape),
        forward=forward,
        adapt=forward + backward,
    )


def _layers(block: Any, tokens: int, computed: int) -> int:
    """The frozen matrices of a block, each on the tokens that it is applied to."""
    query: int = block.attn.qkv.weight.numel() // 3
    mlp: int = sum(p.numel() for p in block.mlp.parameters() if p.ndim == 2)
    projection: int = block.attn.proj.weight.numel()
    return 2 * (2 * query * tokens + (query + projection + mlp) * computed)
