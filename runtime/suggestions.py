"""Is the domain unknown or badly served, and which modules of a repository were made for it?

The index of the repository comes to the device and is searched here. No image and no statistic of one is sent
anywhere; what the outside may see is which modules are fetched.
"""

import numpy as np

from pluto_edge._arrays import Array
from pluto_edge.repository.index import HALF, Index, Near
from pluto_edge.runtime.algorithm import beyond
from pluto_edge.runtime.algorithm.evidence import MOVED
from pluto_edge.runtime.learner import Learner
from pluto_edge.runtime.types import Suggestion, Suggestions

__all__ = ["suggest"]

FEWEST = 16  # recent images: fewer say little of their domain
AHEAD = 1.0  # nats an image by which a module of the index is clearly more likely than those that are loaded
MOST_KNOWN = 0.5  # of the images that look like no loaded module's domain: from here on they are asked about


def suggest(learner: Learner, index: Index, count: int) -> Suggestions:
    """From the recent images of a stream, or of a runtime's steps."""
    recent = learner.recent.x_hat
    if len(recent) < FEWEST:
        return Suggestions(False, f"{len(recent)} recent images, want {FEWEST}", len(recent), 0.0)
    network = learner.network.snapshot()
    state = learner.state.of(network.modules.digests)
    known = beyond.recognise(network.modules, recent, recent, learner.config).shares.sum(axis=1)
    unknown = float(1 - known.mean())
    leader = state.top or ""
    misfit = state.misfit(network.modules.references)
    references = network.modules.references
    loaded = [references[n].signature for n in network.modules.specialists if n in references]
    asked = _asked_about(recent, known)
    near = index.nearest(asked, count + len(network.modules), network.bundle.manifest, loaded)
    found = [_suggestion(n) for n in near if n.module.name not in network.modules]
    badly = misfit is not None and misfit > MOVED
    better = next((m.name for m in found if m.fit >= HALF and m.ahead > AHEAD), "")
    needed = unknown >= MOST_KNOWN or badly or bool(better)
    return Suggestions(
        needed=needed,
        reason=_reason(needed, unknown, leader, misfit, better),
        images=len(recent),
        unknown=unknown,
        leader=leader,
        misfit=misfit,
        modules=tuple(found[:count]),
    )


def _asked_about(recent: Array, known: np.ndarray) -> Array:
    """The images that look like no loaded module's domain, where they are enough to tell; else all."""
    strange = recent[known < MOST_KNOWN]
    return strange if len(strange) >= FEWEST else recent


def _reason(needed: bool, unknown: float, leader: str, misfit: float | None, better: str) -> str:
    share = f"{unknown:.0%} of the images look like no loaded module's domain"
    served = "" if misfit is None else f", the misfit of {leader} is {misfit:.1f}"
    made = f", {better} was made for images like these" if better else ""
    return share + served + made + ("" if needed else ": nothing is missing")


def _suggestion(near: Near) -> Suggestion:
    module = near.module
    return Suggestion(
        name=module.name,
        target=module.target,
        sha256=module.sha256,
        size=module.size,
        distance=near.distance,
        fit=near.fit,
        evidence=near.evidence,
        ahead=near.ahead,
    )
