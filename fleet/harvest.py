"""What a device has learned, as a module to offer: opt-in, checked, and without an image in it.

The module is its parent with the LayerNorm affines that were learned, and with the prototypes of the classes that
were seen often enough in the place of the source's class means; the classes' common move is in the head's bias, as
it was in the device's predictions. Where the looks of the device's images are given, their mean and covariance say
what the module is for. Everything in it is a statistic of many images.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pluto_edge._arrays import Array
from pluto_edge.errors import ConfigError, PlutoError, StoreError
from pluto_edge.modules import LN_BIAS, LN_SCALE, Module, digest_of
from pluto_edge.runtime.algorithm.state import State
from pluto_edge.runtime.engine.modules import Loaded
from pluto_edge.runtime.learner import Learner
from pluto_edge.signature import Reference, Signature, look_statistics
from pluto_edge.store import ModuleConfig, read_module, read_module_config, write_module

__all__ = ["Finding", "check", "harvest", "inspect"]

ENOUGH = 10.0  # images of a class (κ of the prototypes): with fewer, its mean moves along with all classes only
ENOUGH_LOOKS = 32  # images whose looks make a mean and a covariance
MOVED = "head_bias"  # has the common move in it

# How far a harvested module may be from its parent. On the digits, 8 steps on domains that the modules do not know
# move affines by 2 % to 5 % of their norm, biases by 0.4 nats and class means by 1.1 deviations at most
# (benchmarks/harvested.py). A few times that is no device's doing.
AFFINES = 0.2
CLASS_MEANS = 4.0
BIAS = 4.0

CARD = """# {name}

Learned on a device, without labels, from the module `{parent}`.

| | |
|---|---|
| parent | sha256 of its tensors `{digest}` |
| backbone | {architecture}, sha256 of its LayerNorm affines `{backbone}` |
| images seen | {images:,} |
| steps | {steps:,}, {rollbacks:,} of them taken back |
| classes with a mean of their own | {seen} of {classes} |
| look of its domain | {look} |

No image is in it, nor a statistic of fewer than {enough} images. Nobody has checked its accuracy.
"""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: whether it is as it should be, and what was found."""

    what: str
    right: bool
    detail: str

    def __str__(self) -> str:
        return f"{self.what}: {self.detail}"


def harvest(
    learner: Learner,
    out: str | Path,
    module: str | None = None,
    *,
    name: str | None = None,
    parent: str | Path | None = None,
    looks: Array | None = None,
) -> ModuleConfig:
    """Write the folder `out`: what `learner` (a runtime's or a stream's) has learned for one module.

    `module` is the one that leads by itself. `name` is what the new one is called; by itself the parent's name and
    a digest. `parent` is the module's folder, where it is none of the bundle's. `looks` are x̂ [n,d] of images of
    the domain. Raises where nothing was learned, or what was learned fails `check`.
    """
    network = learner.network.snapshot()
    state = learner.state.of(network.modules.digests)
    old = module or state.top
    if old is None or old not in network.modules:
        there = ", ".join(network.modules)
        raise ConfigError(f"{old or 'no module leads yet'}: which module is to be offered? There are: {there}")
    if old not in state.affines and old not in state.prototypes.modules:
        raise ConfigError(f"{old}: nothing was learned for it, so there is nothing to offer")
    before = _parent(learner, old, parent)
    after = _learned(before, state, old, network.modules[old], looks)
    config = _describe(learner, state, before, after, name)
    made = Module(config.name, after.dims, after.tensors)
    wrong = [str(f) for f in check(made, before) if not f.right]
    if wrong:
        raise StoreError(f"what was learned for {old} is not offered: {'; '.join(wrong)}")
    write_module(Path(out), made, config, _card(config, state, old, network.modules[old], looks))
    return config


def _parent(learner: Learner, name: str, folder: str | Path | None) -> Module:
    """The module as it was before anything was learned, with affines of its own."""
    bundle = learner.network.bundle
    if folder is not None:
        module = read_module(Path(folder), read_module_config(Path(folder)))
        return replace(module, tensors={**bundle.load_backbone_affines(), **module.tensors})
    if name not in bundle.manifest.names:
        raise ConfigError(f"{name}: none of the bundle's modules; give the folder that it came from")
    return bundle.load_module(name)


def _learned(parent: Module, state: State, name: str, loaded: Loaded, looks: Array | None) -> Module:
    affines = state.affines.get(name, loaded.exported)
    tensors = {**parent.tensors, LN_SCALE: affines.scale, LN_BIAS: affines.bias}
    reference = loaded.reference
    if reference is None:
        return replace(parent, tensors=tensors)
    signature = reference.signature
    if name in state.prototypes.modules:
        delta, prototypes = state.prototypes.move(name, reference)
        enough = state.prototypes.modules[name].counts >= ENOUGH
        means = np.where(enough[:, None], prototypes, reference.means + delta)
        signature = replace(signature, class_means=means.astype(np.float32))
        tensors[MOVED] = (parent.tensors[MOVED] - reference.head @ delta).astype(np.float32)
    return replace(parent, tensors={**tensors, **_with_looks(signature, looks).tensors})


def _with_looks(signature: Signature, looks: Array | None) -> Signature:
    if looks is None:
        return signature
    if len(looks) < ENOUGH_LOOKS:
        raise ConfigError(f"looks: want those of at least {ENOUGH_LOOKS} images, got {len(looks)}")
    mean, covariance = look_statistics(looks)
    return replace(signature, look_mean=mean, look_factor=covariance.factor, look_noise=covariance.noise)


def _describe(learner: Learner, state: State, before: Module, after: Module, name: str | None) -> ModuleConfig:
    bundle = learner.network.bundle
    digest = learner.network.modules[before.name].digest
    affines = state.affines.get(before.name, learner.network.modules[before.name].exported)
    dims = after.dims
    return ModuleConfig(
        name=name or f"{before.name}-{affines.digest[:8]}",
        kind=dims.kind,
        size=dims.size,
        width=dims.width,
        depth=dims.depth,
        classes=bundle.manifest.classes,
        architecture=bundle.manifest.architecture,
        source=f"learned on a device from {before.name}, {state.samples} images",
        metrics={"images": float(state.samples), "steps": float(state.steps), "rollbacks": float(state.rollbacks)},
        backbone=bundle.manifest.backbone,
        parent=digest,
    )


def _card(config: ModuleConfig, state: State, parent: str, loaded: Loaded, looks: Array | None) -> str:
    seen = state.prototypes.modules.get(parent)
    return CARD.format(
        name=config.name,
        parent=parent,
        digest=loaded.digest,
        architecture=config.architecture,
        backbone=config.backbone,
        images=state.samples,
        steps=state.steps,
        rollbacks=state.rollbacks,
        seen=0 if seen is None else int((seen.counts >= ENOUGH).sum()),
        classes=len(config.classes),
        look="its parent's" if looks is None else f"of {len(looks)} images",
        enough=int(ENOUGH),
    )


def check(module: Module, parent: Module) -> tuple[Finding, ...]:
    """A harvested module beside its parent: the same but for what a device may learn, and that within bounds.

    Both have LayerNorm affines of their own.
    """
    theirs = parent.tensors
    missing = sorted(theirs.keys() ^ module.tensors.keys())
    if missing or module.dims != parent.dims:
        return (Finding("shapes", False, f"other tensors than its parent's ({(missing or ['dims'])[0]})"),)
    wrong = [n for n, v in module.tensors.items() if not np.isfinite(v).all()]
    if wrong:
        return (Finding("finite", False, f"{wrong[0]} holds NaN or infinity"),)
    learned = {LN_SCALE, LN_BIAS, MOVED}
    frozen = [n for n in module.dims.shapes if n not in learned]
    changed = [n for n in frozen if not np.array_equal(module.tensors[n], theirs[n])]
    found = [Finding("frozen", not changed, f"{changed[0]} is not its parent's" if changed else "as its parent's")]
    moved = sum(np.square(module.tensors[n] - theirs[n], dtype=np.float64).sum() for n in (LN_SCALE, LN_BIAS))
    norm = sum(np.square(theirs[n], dtype=np.float64).sum() for n in (LN_SCALE, LN_BIAS))
    share = float(np.sqrt(moved / max(norm, 1e-12)))
    found.append(Finding("affines", share <= AFFINES, f"moved by {share:.2%} of their norm, want {AFFINES:.0%}"))
    bias = float(np.abs(module.tensors[MOVED] - theirs[MOVED]).max())
    found.append(Finding("bias", bias <= BIAS, f"the head's moved by {bias:.2f} at most, want {BIAS:g}"))
    return (*found, *_check_means(module, parent))


def _check_means(module: Module, parent: Module) -> tuple[Finding, ...]:
    try:
        own, theirs = (m.signature(StoreError) for m in (module, parent))
    except StoreError as error:
        return (Finding("signature", False, str(error)),)
    if own is None or theirs is None:
        return ()
    reference = Reference.of(theirs, parent.tensors["head_weight"])
    far = np.diag(reference.distances(own.class_means.astype(np.float64), reference.means))
    worst = float(np.sqrt(far.max()))
    detail = f"moved by {worst:.2f} deviations at most, want {CLASS_MEANS:g}"
    return (Finding("class means", worst <= CLASS_MEANS, detail),)


def inspect(folder: str | Path, parent: Module) -> tuple[Finding, ...]:
    """A folder that arrived from a device, before anybody uses it: what was found, right or wrong.

    `parent` is the module that it says it was learned from, with LayerNorm affines of its own.
    """
    try:
        config = read_module_config(Path(folder))
        module = read_module(Path(folder), config)
    except (PlutoError, OSError) as error:
        return (Finding("folder", False, str(error)),)
    same = config.parent == digest_of(parent.tensors)
    return (
        Finding("parent", same, "as it says" if same else f"it says {config.parent[:12] or 'nothing'}, not this"),
        *check(module, parent),
    )
