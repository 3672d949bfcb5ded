"""The tensors of a module and of the selector: names, shapes, counts and checks.

A module is a prompt (kind `vpt`) or one bottleneck adapter per block (kind `adapter`), its own head, and
LayerNorm affines. The tensors' names are those of the files and, with the same names, of the graph inputs.
"""

import hashlib
from dataclasses import dataclass, field, fields, replace
from math import prod
from typing import Literal, get_args

import numpy as np

from pluto_edge._arrays import Array
from pluto_edge._files import Tensors
from pluto_edge._schema import Error
from pluto_edge.errors import ConfigError
from pluto_edge.signature import Shape, Signature
from pluto_edge.signature import shapes as signature_shapes

Kind = Literal["vpt", "adapter"]

LN_SCALE, LN_BIAS = "ln_scale", "ln_bias"
LOGIT_MEANS = "logit_means"  # in the files of earlier versions, and not used any more

Role = Literal["specialist", "generalist"]


@dataclass(frozen=True)
class Dims:
    """What decides the shapes of a module's tensors.

    `size` is the number of prompts (kind `vpt`) or the bottleneck (kind `adapter`).
    """

    kind: Kind
    size: int
    width: int
    depth: int
    classes: int

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ConfigError(f"kind: want one of {get_args(Kind)}, got {self.kind!r}")
        for name in ("size", "width", "depth", "classes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: want at least 1, got {getattr(self, name)}")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of a module but the LayerNorm affines."""
        d, depth, r = self.width, self.depth, self.size
        head = {"head_weight": (self.classes, d), "head_bias": (self.classes,)}
        if self.kind == "vpt":
            return {"prompt": (r, d), **head}
        return {
            "down_weight": (depth, d, r),
            "down_bias": (depth, r),
            "up_weight": (depth, r, d),
            "up_bias": (depth, d),
            **head,
        }

    @property
    def ln_shape(self) -> tuple[int, int]:
        """Two LayerNorms a block and the last one; norm1, norm2 of block 0 first."""
        return (2 * self.depth + 1, self.width)

    @property
    def ln_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of a module's LayerNorm affines by name."""
        return {LN_SCALE: self.ln_shape, LN_BIAS: self.ln_shape}

    @property
    def optional_shapes(self) -> dict[str, Shape]:
        """What a module may have beyond that: its signature."""
        return {**signature_shapes(self.width, self.depth, self.classes), LOGIT_MEANS: (2, self.classes)}

    @property
    def parameters(self) -> int:
        """What the paper's table counts: module and head, without LayerNorm affines."""
        return sum(prod(shape) for shape in self.shapes.values())


@dataclass(frozen=True)
class Module:
    """One module's tensors.

    `ln_scale` and `ln_bias` may be absent: then they are the backbone's. So may the tensors of its signature.
    """

    name: str
    dims: Dims
    tensors: Tensors = field(repr=False)

    def signature(self, error: Error) -> Signature | None:
        """What its source looked like to it, if it knows."""
        return Signature.find(self.tensors, f"module {self.name!r}", error)


def digest_of(tensors: Tensors) -> str:
    """Of all tensors of a module, affines of its own among them: what was learned is of use to that very module."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = np.ascontiguousarray(tensors[name])
        digest.update(f"{name} {value.dtype} {value.shape} ".encode() + value.tobytes())
    return digest.hexdigest()


def check_tensors(
    tensors: Tensors,
    shapes: dict[str, tuple[int, ...]],
    where: str,
    error: Error,
    optional: dict[str, Shape] | None = None,
) -> None:
    """Exactly the tensors in `shapes` (and any of `optional`), each of its shape."""
    optional = optional or {}
    missing = sorted(shapes.keys() - tensors.keys())
    if missing:
        raise error(f"{where}: tensor {missing[0]!r} is missing")
    unknown = sorted(tensors.keys() - shapes.keys() - optional.keys())
    if unknown:
        raise error(f"{where}: tensor {unknown[0]!r} is not part of this kind of module")
    for name, value in tensors.items():
        want = {**shapes, **optional}[name]
        if len(value.shape) != len(want) or any(w not in (None, n) for w, n in zip(want, value.shape, strict=True)):
            shown = ["any" if w is None else w for w in want]
            raise error(f"{where}: {name}: want shape {shown}, got {list(value.shape)}")


def check_module(module: Module, where: str, error: Error) -> None:
    """A module has all tensors of its dims, of the right shapes and finite, and a signature that fits."""
    check_tensors(
        module.tensors,
        module.dims.shapes,
        where,
        error,
        optional={**module.dims.ln_shapes, **module.dims.optional_shapes},
    )
    check_signature(module, where, error)
    if (LN_SCALE in module.tensors) != (LN_BIAS in module.tensors):
        raise error(f"{where}: {LN_SCALE} and {LN_BIAS} come together or not at all")


def check_signature(module: Module, where: str, error: Error) -> None:
    """All of its tensors or none, and of numbers that can be used."""
    own = list(signature_shapes(module.dims.width, module.dims.depth, module.dims.classes))
    missing = [n for n in own if n not in module.tensors]
    if missing and len(missing) < len(own):
        raise error(f"{where}: tensor {missing[0]!r} is missing; a signature is whole or not there")
    module.signature(error)


@dataclass(frozen=True)
class SelectorWeights:
    """The selector G of the paper: two small MLPs, a LayerNorm each, and a dot product.

    down_x [d, d'_x], up_x [d'_x, d'], down_l [K, d'_l], up_l [d'_l, d'], and scale and bias [d'] of both
    LayerNorms. Nothing in it depends on the number of modules.
    """

    down_x: Array
    up_x: Array
    down_l: Array
    up_l: Array
    scale_x: Array
    bias_x: Array
    scale_l: Array
    bias_l: Array

    @property
    def parameters(self) -> int:
        """How many numbers the selector has."""
        return sum(getattr(self, f.name).size for f in fields(self))

    @property
    def tensors(self) -> Tensors:
        """All of them by name, as they are written."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_tensors(
        cls, tensors: Tensors, *, width: int, classes: int, where: str, error: Error
    ) -> "SelectorWeights":
        """The selector in these tensors, if they fit a backbone of this width and so many classes."""
        missing = sorted({f.name for f in fields(cls)} - tensors.keys())
        if missing:
            raise error(f"{where}: tensor {missing[0]!r} is missing")
        if tensors["up_x"].ndim != 2 or tensors["up_l"].ndim != 2:
            raise error(f"{where}: up_x and up_l must be matrices")
        hidden_x, out = tensors["up_x"].shape
        hidden_l = tensors["up_l"].shape[0]
        shapes: dict[str, tuple[int, ...]] = {
            "down_x": (width, hidden_x),
            "up_x": (hidden_x, out),
            "down_l": (classes, hidden_l),
            "up_l": (hidden_l, out),
            **dict.fromkeys(("scale_x", "bias_x", "scale_l", "bias_l"), (out,)),
        }
        check_tensors(tensors, shapes, where, error)
        return cls(**tensors)

    @classmethod
    def uniform(cls, **sizes: int) -> "SelectorWeights":
        """One that gives every module the same weight: the plain average, until it is trained."""
        start = cls.random(**sizes)
        return replace(start, up_x=np.zeros_like(start.up_x), up_l=np.zeros_like(start.up_l))

    @classmethod
    def random(
        cls, *, width: int, classes: int, hidden_x: int, hidden_l: int, out: int, seed: int = 0
    ) -> "SelectorWeights":
        """Scaled normal matrices and identity LayerNorms: where training starts."""
        rng = np.random.default_rng(seed)

        def matrix(rows: int, cols: int) -> Array:
            return np.asarray(rng.standard_normal((rows, cols)) / np.sqrt(rows), np.float32)

        one, zero = np.ones(out, np.float32), np.zeros(out, np.float32)
        return cls(
            down_x=matrix(width, hidden_x),
            up_x=matrix(hidden_x, out),
            down_l=matrix(classes, hidden_l),
            up_l=matrix(hidden_l, out),
            scale_x=one.copy(),
            bias_x=zero.copy(),
            scale_l=one.copy(),
            bias_l=zero.copy(),
        )
