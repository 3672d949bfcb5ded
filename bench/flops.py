"""How many operations an image costs in each graph: two for every multiply and add of a matrix product.

Norms, activations, softmax and sums are left out: they are few, and a share of the peak of matrix products is a
share of these. Widths are read from the graphs, because the manifest does not know every backbone's MLP.
"""

from dataclasses import dataclass
from math import prod

from pluto_edge.errors import BundleError
from pluto_edge.manifest import ADAPT, EMBED, Bundle
from pluto_edge.runtime.engine.onnx_bytes import Shapes, read_shapes

ALL_TOKENS = ("attn.k.weight", "attn.v.weight")  # what the last block, too, computes for every token
QUANTIZED = "_quantized"  # what the quantizer calls a matrix


@dataclass(frozen=True)
class Flops:
    """Of one image: through `embed`, and through `forward` and `adapt` with one module."""

    embed: int
    forward: int
    adapt: int


def count(bundle: Bundle) -> Flops:
    """The last block computes only the tokens that the head looks at, but keys and values of all of them.

    `adapt` goes forward, and back through every product for its input alone, since weights take no gradient: a
    layer costs once more, attention, whose two products have two inputs each, twice more.
    """
    manifest, dims = bundle.manifest, bundle.manifest.dims
    adapt = read_shapes(bundle.file(ADAPT))
    try:
        tokens = manifest.block_tokens
        pooled = _size(adapt.of[adapt.slices[0]][0])
        rows = [*[tokens] * (dims.depth - 1), pooled]
        attention = sum(4 * _outputs(adapt, f"blocks.{i}.attn.q.weight") * tokens * n for i, n in enumerate(rows))
        layers = sum(_layers(adapt, i, tokens, n) for i, n in enumerate(rows))
        embed = _embed(read_shapes(bundle.file(EMBED)), manifest.preprocessing.size)
    except (KeyError, IndexError, ValueError) as cause:
        raise BundleError(f"{bundle.path}: not graphs of this pluto-export ({cause!r}); export again") from cause
    if dims.kind == "adapter":
        layers += sum(4 * dims.width * dims.size * n for n in rows)
    layers += 2 * dims.width * dims.classes
    return Flops(embed, layers + attention, 2 * layers + 3 * attention)


def _layers(shapes: Shapes, index: int, tokens: int, rows: int) -> int:
    """The frozen matrices of a block, on the tokens that each is applied to."""
    start, total = f"blocks.{index}.", 0
    for name, shape in shapes.of.items():
        layer = name.removesuffix(QUANTIZED)
        if layer.startswith(start) and layer.endswith(".weight") and len(shape) == 2:
            applied = tokens if layer.removeprefix(start) in ALL_TOKENS else rows
            total += 2 * applied * prod(map(_size, shape))
    return total


def _embed(shapes: Shapes, image: tuple[int, int]) -> int:
    width, channels, height, across = map(_size, shapes.of["patch_embed.weight"])
    patches = (image[0] // height) * (image[1] // across)
    return 2 * patches * width * channels * height * across


def _outputs(shapes: Shapes, name: str) -> int:
    _, columns = shapes.of.get(name) or shapes.of[name + QUANTIZED]
    return _size(columns)


def _size(value: int | None) -> int:
    if value is None:
        raise ValueError("a size is open")
    return value
