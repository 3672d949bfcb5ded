"""What was learned belongs to a bundle: it is carried over to another as far as that is the same, or set aside.

A state is of use to the modules and the backbone that it was learned with. Where a new bundle has the same backbone
(its graphs and weights have the same hashes), what was learned with modules that are the same goes along.
Everything else stays in the old file, which is kept under a name of its own: nothing is used that does not belong.
The newest few of these files are kept.
"""

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pluto_edge._files import give_name, sync_folder
from pluto_edge.manifest import EMBED, FORWARD, SELECTOR, WEIGHTS, Manifest
from pluto_edge.runtime import persistence
from pluto_edge.runtime.algorithm.state import State
from pluto_edge.runtime.runtime import Runtime

__all__ = ["Carried", "aside", "carry", "same_backbone"]

MAX_ASIDE = 4  # states of other bundles that are kept beside one that is in use


@dataclass(frozen=True)
class Carried:
    """What became of a state: the modules whose learning was carried over and those whose was not, where the old
    file is kept, and why."""

    modules: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    kept: Path | None = None
    reason: str = ""


def same_backbone(one: Manifest, other: Manifest) -> bool:
    """Whether what modules learned with one bundle's graphs and weights is of use with the other's."""
    names = (EMBED, FORWARD, WEIGHTS)
    return [one.files[n].sha256 for n in names] == [other.files[n].sha256 for n in names]


def aside(path: Path, bundle: str) -> Path:
    """Where the state of the bundle of this hash is kept while another bundle has `path`."""
    return path.with_name(f"{path.name}.{bundle[:12]}")


def carry(path: str | Path, old: Runtime, new: Runtime) -> Carried:
    """Make the state at `path` one that `new` can restore, or set it aside; done twice it is as done once.

    `old` is a runtime of the bundle that it was saved with, as far as that is known. Where `new` was run before, as
    after a rollout that was taken back, its own state is put back instead. Of the states that were set aside, the
    newest `MAX_ASIDE` stay.
    """
    done = _carry(Path(path), old, new)
    if done.kept is not None:
        _prune(Path(path), done.kept)
    return done


def _carry(path: Path, old: Runtime, new: Runtime) -> Carried:
    if not persistence.saved(path):
        return Carried(reason="nothing was saved")
    owner = persistence.owner(path)
    if owner == new.bundle.hash:
        return Carried(reason="it is the new bundle's already")
    kept = aside(path, owner or "damaged")
    mine = aside(path, new.bundle.hash)
    if persistence.owner(mine) == new.bundle.hash:
        _keep(path, kept)
        give_name(mine, path)
        return Carried(kept=kept, reason="the new bundle has run here before: its own state is back")
    reason = _refused(owner, old, new)
    if reason:
        for file, name in zip(persistence.generations(path), persistence.generations(kept), strict=True):
            if file.is_file():
                file.replace(name)
        sync_folder(path.parent)
        return Carried(kept=kept, reason=reason)
    taken, left = _of_use(_read(path, old), old, new)
    _keep(path, kept)
    persistence.save(path, taken, new.bundle.hash)
    return Carried(tuple(taken.digests), left, kept, "the backbone is the same")


def _refused(owner: str, old: Runtime, new: Runtime) -> str:
    """Why nothing of the state is of use, or nothing."""
    if not owner:
        return "no generation of it is whole"
    if owner != old.bundle.hash:
        return f"it was saved with a bundle that is not known here ({owner[:12]})"
    if not same_backbone(old.manifest, new.manifest):
        return "the new bundle has another backbone, or other graphs"
    if old.manifest.dims != new.manifest.dims or old.classes != new.classes:
        return "the new bundle has modules of another shape, or other classes"
    return ""


def _keep(path: Path, kept: Path) -> None:
    """Both generations get another name, under which they stay."""
    for file, name in zip(persistence.generations(path), persistence.generations(kept), strict=True):
        if file.is_file():
            give_name(file, name)


def _prune(path: Path, kept: Path) -> None:
    """Delete all states that were set aside but the newest, of which the one that was just kept is the first."""
    name = re.compile(re.escape(path.name) + r"\.([0-9a-f]{12}|damaged)")
    others = {f.with_suffix("") if f.suffix == ".previous" else f for f in path.parent.iterdir()} - {kept}
    states = [f for f in others if name.fullmatch(f.name)]
    for state in sorted(states, key=_saved_at, reverse=True)[MAX_ASIDE - 1 :]:
        for file in persistence.generations(state):
            with suppress(OSError):
                file.unlink(missing_ok=True)


def _saved_at(state: Path) -> float:
    return max((f.stat().st_mtime for f in persistence.generations(state) if f.is_file()), default=0.0)


def _read(path: Path, old: Runtime) -> State:
    """The state, as a stream of the old bundle reads it; what the old runtime has learned itself stays."""
    with old.stream(f"carry {path.name}", background=False) as stream:
        stream.restore(path)
        return stream.learner.state


def _of_use(state: State, old: Runtime, new: Runtime) -> tuple[State, tuple[str, ...]]:
    """What the new bundle's modules have a use for, and the names of those that have none."""
    network = new.learner.network
    digests = network.modules.digests
    left = tuple(n for n, digest in state.digests.items() if digests.get(n) != digest)
    for name in left:
        state = state.without_module(name)
    if old.manifest.files[SELECTOR] != new.manifest.files[SELECTOR]:
        state = replace(state, selector=network.selector, moments={})
    top = state.top if state.top in digests else None
    return replace(state, top=top, digests={n: d for n, d in state.digests.items() if n not in left}), left
