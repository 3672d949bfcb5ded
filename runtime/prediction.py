"""What the modules say of images with what was learned so far: who is asked, and how the answers become one."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from pluto_edge._arrays import Array
from pluto_edge.config import AdaptConfig
from pluto_edge.errors import NotFiniteError
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.algorithm import beyond, selector
from pluto_edge.runtime.algorithm.prototypes import Prototypes
from pluto_edge.runtime.algorithm.selection import Blend, blend
from pluto_edge.runtime.algorithm.state import State
from pluto_edge.runtime.engine.modules import Modules
from pluto_edge.runtime.engine.network import Network
from pluto_edge.runtime.engine.passes import Look, Pass
from pluto_edge.runtime.recent import newest
from pluto_edge.runtime.types import Prediction

__all__ = ["Predicted", "look_at", "predict", "predict_from", "require_finite", "to_prediction"]


class Predicted(NamedTuple):
    """The blend, the pass that it was made from, and `tried` with these images (`Recent.tried`)."""

    blend: Blend
    passed: Pass
    tried: Prototypes


def predict(
    network: Network,
    batch: ImageBatch,
    state: State,
    recent: Array,
    tried: Prototypes,
    config: AdaptConfig,
    seen: Sequence[Pass] = (),
    activations: bool = False,
) -> Predicted:
    """The images with this state, given the looks of the images before them.

    Who has a say is decided from how the images look and, once these have run, from how well the modules fit. What
    `seen` (passes of the same images) has already is not computed again.
    """
    modules = network.modules
    if not beyond.applies(modules, config):
        passed = network.run_finite(batch, state.affines, modules.specialists, seen=seen)
        return Predicted(require_finite(predict_from(modules, passed, state, recent, config)), passed, tried)
    look = look_at(network, batch, seen)
    recognised = beyond.recognise(modules, newest(recent, look.x_hat), look.x_hat, config)
    run = partial(network.run_finite, batch, state.affines, look=look, activations=activations)
    say = beyond.who_has_a_say(modules, tried, recognised, config)
    passed = run(say.names(modules), seen=seen)
    said = beyond.predict(modules, state, passed, say.weights(state, passed), config)
    tried = beyond.try_on(modules, tried, passed, said, config)
    say = beyond.who_has_a_say(modules, tried, recognised, config)  # who does not fit leaves its say
    if not set(say.names(modules)) <= set(passed.names):
        passed = run(say.names(modules), seen=seen or (passed,))
    said = beyond.predict(modules, state, passed, say.weights(state, passed), config)
    return Predicted(require_finite(said), passed, tried)


def predict_from(modules: Modules, passed: Pass, state: State, recent: Array, config: AdaptConfig) -> Blend:
    """What the modules of a pass say together, with the selector and the prototypes of this state."""
    if not beyond.applies(modules, config):
        return blend(passed, selector.weights(state.selector, passed.x_hat, passed.logits), config)[0]
    recognised = beyond.recognise(modules, recent, passed.x_hat, config)
    say = beyond.who_has_a_say(modules, state.prototypes, recognised, config)
    return beyond.predict(modules, state, passed, say.weights(state, passed), config)


def look_at(network: Network, batch: ImageBatch, seen: Sequence[Pass] = ()) -> Look:
    """How the images look; what `seen` (passes of the same images) knows of it is not computed again."""
    look = Look(np.concatenate([p.x_hat for p in seen]), None) if seen else network.look(batch)
    if not np.isfinite(look.x_hat).all():
        raise NotFiniteError("the images are not finite once they are embedded; look at mean and std")
    return look


def require_finite(blend: Blend) -> Blend:
    """The blend, which must be numbers."""
    if not (np.isfinite(blend.logits).all() and np.isfinite(blend.weights).all()):
        raise NotFiniteError("what the modules say together is not finite; look at the selector's weights")
    return blend


def to_prediction(blend: Blend, classes: Sequence[str]) -> Prediction:
    """A blend as users see it."""
    probabilities = blend.probabilities
    labels = probabilities.argmax(axis=1)
    return Prediction(
        labels=labels,
        classes=tuple(classes[i] for i in labels),
        probabilities=probabilities.astype(np.float32),
        logits=blend.logits.astype(np.float32),
        weights=blend.weights.astype(np.float32),
        modules=blend.names,
        selected=tuple(blend.names[i] for i in blend.order),
        entropy=selector.entropy(probabilities).astype(np.float32),
    )
