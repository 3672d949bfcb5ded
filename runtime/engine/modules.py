"""The modules of a network as they are loaded on the device, and what follows from who is among them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar, cast

from pluto_edge.errors import BundleError
from pluto_edge.modules import LN_BIAS, LN_SCALE, Module, Role, digest_of
from pluto_edge.runtime.engine.affines import Affines
from pluto_edge.runtime.engine.session import Engine, Tensor
from pluto_edge.signature import Reference

__all__ = ["Loaded", "Modules"]

T = TypeVar("T")


@dataclass(frozen=True)
class Loaded:
    """A module on the device, the affines that it was exported with, and its source's statistics if known.

    `homes` is how much say specialists keep on their own domains: a generalist has all of them, a specialist its
    own, which counts where there is no generalist. `digest` is of all its tensors: what was learned with a module
    is of use to that very module only.
    """

    tensors: Mapping[str, Tensor]
    exported: Affines
    role: Role
    homes: Mapping[str, float]
    reference: Reference | None
    digest: str

    @classmethod
    def place(cls, module: Module, role: Role, homes: Mapping[str, float], engine: Engine) -> "Loaded":
        """Put a module that was read from a file on the engine's device."""
        signature = module.signature(BundleError)
        return cls(
            tensors={n: engine.tensor(module.tensors[n]) for n in module.dims.shapes},
            exported=Affines(module.tensors[LN_SCALE], module.tensors[LN_BIAS]),
            role=role,
            homes=homes,
            reference=None if signature is None else Reference.of(signature, module.tensors["head_weight"]),
            digest=digest_of(module.tensors),
        )

    def digest_with(self, affines: Affines) -> str:
        """Of all that the module's answer to an image depends on: its tensors, and the λ that it runs with."""
        return f"{self.digest}:{affines.digest}"


class Modules(dict[str, Loaded]):
    """All modules by name, and what follows from who is among them. Never changed: a new set takes its place."""

    @cached_property
    def generalist(self) -> str | None:
        """The module that was trained on all domains together, if there is one."""
        return next((n for n, m in self.items() if m.role == "generalist"), None)

    @cached_property
    def specialists(self) -> tuple[str, ...]:
        """All others; where there are none, the generalist is one."""
        return tuple(n for n in self if n != self.generalist) or tuple(self)

    @cached_property
    def homes(self) -> Mapping[str, float]:
        """The say that a specialist has on its own domain, where it is not all of it: beside the generalist or,
        where there is none, beside the other specialists."""
        if self.generalist is not None:
            return self[self.generalist].homes
        return {name: share for module in self.values() for name, share in module.homes.items()}

    @cached_property
    def references(self) -> dict[str, Reference]:
        """Of the modules that have a signature."""
        return {n: m.reference for n, m in self.items() if m.reference is not None}

    @cached_property
    def exported(self) -> dict[str, Affines]:
        """By module the λ that it was exported with."""
        return {n: m.exported for n, m in self.items()}

    @cached_property
    def digests(self) -> dict[str, str]:
        """By module the digest of its tensors: two sets with the same digests are the same modules."""
        return {n: m.digest for n, m in self.items()}

    @cached_property
    def _derived(self) -> dict[object, object]:
        return {}

    def once(self, derive: Callable[["Modules"], T]) -> T:
        """What somebody else makes of these modules, made once."""
        if derive not in self._derived:
            self._derived[derive] = derive(self)
        return cast(T, self._derived[derive])
