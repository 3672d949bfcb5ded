"""One line of learning: a state, the steps that change it, and the guard that takes them back.

Steps are transactions. A step computes a proposal from the state as it is; the state is replaced in one
assignment at the very end, or not at all. Predictions read the state once, so they never see half a step. Events
are written down under the lock and handed to `on_event` under none.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import log
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pluto_edge.config import AdaptConfig
from pluto_edge.errors import ConfigError, NotFiniteError
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime import guard, persistence
from pluto_edge.runtime.algorithm import beyond, selector, step
from pluto_edge.runtime.algorithm.continuity import Continuity
from pluto_edge.runtime.algorithm.evidence import WINDOW
from pluto_edge.runtime.algorithm.prototypes import Prototypes
from pluto_edge.runtime.algorithm.selection import Blend, blend
from pluto_edge.runtime.algorithm.state import Array, Gathered, State, without
from pluto_edge.runtime.algorithm.step import Proposal
from pluto_edge.runtime.engine.forks import renew_after_fork
from pluto_edge.runtime.engine.network import Look, Modules, Network, Pass
from pluto_edge.runtime.engine.timing import Stages
from pluto_edge.runtime.stream.changes import ChangeDetector
from pluto_edge.runtime.stream.delivery import Delivery
from pluto_edge.runtime.types import MAX_EVENTS, Event, Kind, Prediction

AVERAGE = 0.9  # of SAR's moving average


class Learner:
    def __init__(
        self, network: Network, config: AdaptConfig, on_event: Callable[[Event], None] | None = None
    ) -> None:
        rows = network.bundle.manifest.dims.ln_shape[0]
        if config.ln_layers is not None and max(config.ln_layers) >= rows:
            raise ConfigError(f"ln_layers: want rows below {rows}, got {max(config.ln_layers)}")
        self.network, self.config = network, config
        self.delivery = Delivery(on_event)
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self.counts: Counter[Kind] = Counter()  # of events, also those that `events` has dropped
        self.frame = 0  # of the stream that feeds this learner
        self._exported = State(network.selector)
        self.state = self._exported
        self._recent = np.zeros((0, network.bundle.manifest.dims.width), np.float32)  # x̂ of the last images
        self._tried = Prototypes()  # of the images that were watched: who fits them
        self._continuity = Continuity()  # of the images that were followed
        self._triers = network.modules  # who was asked; with others it starts anew
        self._changes = ChangeDetector()  # of the images that `step` was given; a stream has its own
        self._left_out: frozenset[str] = frozenset()  # modules that said NaN or infinity when they last ran
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        self._lock = threading.RLock()  # held to replace the state
        self._steps = threading.Lock()  # held for a whole step: they come one after another

    def predict(self, batch: ImageBatch, activations: bool = False) -> tuple[Blend, Pass]:
        """The blend, and the pass it was made from."""
        network, state = self._now()
        blend, passed, _ = self._predict(
            network, batch, state, self._recent, state.prototypes, activations=activations
        )
        self._tell_left_out(passed)
        self.delivery.deliver()
        return blend, passed

    def exported(self, batch: ImageBatch, seen: Sequence[Pass] = ()) -> Blend:
        """What the bundle says of these images as it was exported, as if they were the first that it sees.

        What `seen` (passes of the same images) has of it already is not computed again.
        """
        network = self.network.snapshot()
        return self._predict(network, batch, self._exported, self._recent[:0], Prototypes(), seen)[0]

    def _now(self) -> tuple[Network, State]:
        """The modules as they are, and what was learned with these very ones: both are read once a call."""
        network = self.network.snapshot()
        return network, self.state.of(network.modules.digests)

    def _predict(
        self,
        network: Network,
        batch: ImageBatch,
        state: State,
        recent: Array,
        tried: Prototypes,
        seen: Sequence[Pass] = (),
        activations: bool = False,
        urgent: bool = True,
    ) -> tuple[Blend, Pass, Prototypes]:
        """The blend, the pass it was made from, and `tried` with these images: it says who fits, and no more."""
        modules, config = network.modules, self.config
        with network.gate.urgent() if urgent else nullcontext():
            if not beyond.applies(modules, config):
                passed = network.run_finite(batch, state.affines, modules.specialists, seen=seen)
                return _finite(self._without_step(modules, passed, state)), passed, tried
            look = self._look(network, batch, seen)
            looks = beyond.looks_like(modules, _newest(recent, look.x_hat), look.x_hat, config)
            run = partial(network.run_finite, batch, state.affines, look=look, activations=activations)
            say = beyond.who_has_a_say(modules, tried, looks, config)
            passed = run(say.names(modules), seen=seen)
            blend = beyond.predict(modules, state, passed, say.weights(modules, state, passed), config)
            tried = beyond.try_on(modules, tried, passed, blend, config)
            say = beyond.who_has_a_say(modules, tried, looks, config)  # who does not fit leaves its say
            if not set(say.names(modules)) <= set(passed.names):
                passed = run(say.names(modules), seen=seen or (passed,))
            blend = beyond.predict(modules, state, passed, say.weights(modules, state, passed), config)
            return _finite(blend), passed, tried

    def _look(self, network: Network, batch: ImageBatch, seen: Sequence[Pass] = ()) -> Look:
        """How the images look; what `seen` (passes of the same images) knows of it is not computed again."""
        look = Look(np.concatenate([p.x_hat for p in seen]), None) if seen else network.look(batch)
        if not np.isfinite(look.x_hat).all():
            raise NotFiniteError("the images are not finite once they are embedded; look at mean and std")
        return look

    def _tell_left_out(self, passed: Pass) -> None:
        """One event when a module is left out, and none until it was back in between."""
        with self._lock:
            new = [n for n in passed.left_out if n not in self._left_out]
            self._left_out = (self._left_out - set(passed.names)) | set(passed.left_out)
            for name in new:
                self._emit(Event("module", self.state.steps, f"{name} is left out: what it says is not finite"))

    def watch(self, batch: ImageBatch, activations: bool = False) -> tuple[Blend, Pass]:
        """`predict` for a stream: how its images look, and which modules fit them, is kept for the next ones.

        That decides who has a say. Nothing is learned.
        """
        network, state = self._now()
        tried = self._tried if network.modules is self._triers else Prototypes()
        self._triers = network.modules
        blend, passed, self._tried = self._predict(
            network, batch, state, self._recent, tried, activations=activations
        )
        self._recent = _newest(self._recent, passed.x_hat)
        self._tell_left_out(passed)
        self.delivery.deliver()
        return blend, passed

    def follow(self, blend: Blend, keep: bool = True) -> Blend:
        """What was said of the stream's next images, in the light of those before them and of each other.

        Without `keep` it is as if they had not been there, once they are predicted.
        """
        if not (self.config.continuity and self.network.modules.references):
            return blend
        alone = np.maximum(blend.probabilities, np.finfo(np.float64).tiny)
        with self._lock:
            followed, after = self._continuity.follow(alone)
            self._continuity = after if keep else self._continuity
        return replace(blend, logits=blend.logits + np.log(followed / alone))

    def step(self, batch: ImageBatch, seen: Sequence[Pass] = ()) -> tuple[Blend, Event]:
        """Algorithm 1: predict and learn. What is rolled back is predicted as if the step had not been.

        `seen` are passes of the same images that `watch` gave: a stream, which looks out for another domain itself.
        A reset or restore during a step wins over it.
        """
        try:
            with self._steps:
                blend, event = self._step(batch, seen)
                return blend if seen else self.follow(blend, keep=event.kind != "rollback"), event
        finally:
            self.delivery.deliver()

    def _look_out(self, look: Look) -> None:
        """Where the images look like another domain than those before them, learning starts anew."""
        changes = [c for x_hat in look.x_hat if (c := self._changes.update(0.0, (), x_hat))]
        if changes:
            self._reopen(changes[-1])

    def _step(self, batch: ImageBatch, seen: Sequence[Pass]) -> tuple[Blend, Event]:
        before, stages = self.state, Stages()
        recent = self._recent
        network = self.network.snapshot()
        digests = network.modules.digests
        known = before.of(digests)
        try:
            look = self._look(network, batch, seen) if beyond.applies(network.modules, self.config) else None
            if look is not None and not seen:
                self._look_out(look)
                before, recent = self.state, self._recent
                known = before.of(digests)
            proposal = self._propose(network, known, batch, stages, seen, look)
            with stages("guard"):
                judged = self._judge(network, batch, known, proposal)
                judged = self._keep_score(network, batch, known, proposal, judged)
            _finite(judged.blend)
        except Exception as error:
            plain = None
            if isinstance(error, NotFiniteError) and known.affines:
                plain = self._as_exported(network, batch)
            if plain is not None:  # so what was learned is why
                return plain, self._start_over(before, len(batch))
            reason = f"{type(error).__name__}: {error}"
            with self._lock:
                if self.state is before:
                    self.state = replace(before, steps=before.steps + 1, rollbacks=before.rollbacks + 1)
                    if not seen:
                        self._recent = recent
                self._emit(Event("rollback", self.state.steps, reason, samples=len(batch)))
            raise
        counted = replace(
            judged.state.learned_with(digests),
            steps=before.steps + 1,
            samples=before.samples + len(batch),
            reliable=proposal.reliable / len(batch),
            rollbacks=before.rollbacks + (judged.kind == "rollback"),
        )
        with self._lock:
            if self.state is before:
                self.state = counted
                if judged.kind == "rollback" and not seen:  # a stream has watched its images before
                    self._recent = recent
            else:
                judged = replace(judged, kind="rollback", reason="the state was replaced during the step")
            event = self._emit(_describe(proposal, judged, self.state.steps, stages))
        self._tell_left_out(proposal.passed)
        return judged.blend, event

    def _as_exported(self, network: Network, batch: ImageBatch) -> Blend | None:
        """What the exported weights say, if that is finite."""
        try:
            return self._predict(network, batch, self._exported, self._recent, Prototypes())[0]
        except NotFiniteError:
            return None

    def _start_over(self, before: State, samples: int) -> Event:
        """Back to the exported weights, because nothing that the adapted ones say is finite."""
        with self._lock:
            if self.state is before:
                self.state = replace(self._exported, steps=before.steps + 1, rollbacks=before.rollbacks + 1)
            return self._emit(Event("rollback", self.state.steps, "logits are not finite", samples=samples))

    def _propose(
        self,
        network: Network,
        before: State,
        batch: ImageBatch,
        stages: Stages,
        seen: Sequence[Pass],
        look: Look | None,
    ) -> Proposal:
        if look is None:
            return step.propose(network, before, batch, self.config, stages, seen)
        if not seen:  # a stream has watched its frames already
            self._recent = _newest(self._recent, look.x_hat)
        continuity = self._continuity if self.config.continuity else None
        if continuity is not None and seen:  # these were followed already, one by one
            continuity = replace(continuity, beliefs=None)
        return beyond.propose(network, before, batch, self.config, stages, seen, look, self._recent, continuity)

    def reopen(self, reason: str) -> None:
        """Another domain: modules and prototypes start anew, from the exported selector; learned affines stay."""
        self._reopen(reason)
        self.delivery.deliver()

    def _reopen(self, reason: str) -> None:
        with self._lock:
            self.state = replace(
                self.state,
                selector=self._exported.selector,
                moments={},
                momentum={},
                gathered=Gathered(),
                prototypes=Prototypes(),
                top=None,
                compared=(),
                average=None,
            )
            self._start_watching_anew()
            self._emit(Event("change", self.state.steps, reason))

    def drop_step(self) -> None:
        """Nothing changes but for a step that is under way: it will not be taken."""
        with self._lock:
            self.state = replace(self.state)

    def reset(self, module: str | None = None) -> None:
        """Back to the exported weights, bit for bit: all of it, or one module's affines."""
        with self._lock:
            if module is not None and module not in self.network.modules:
                raise ConfigError(f"no module {module!r}; there are: {', '.join(self.network.modules)}")
            state = self._exported
            if module is not None:
                state = replace(
                    self.state,
                    affines=without(self.state.affines, [module]),
                    momentum=without(self.state.momentum, [module]),
                    prototypes=self.state.prototypes.without(module),
                    compared=(),
                )
            else:
                self._start_watching_anew()
                self._changes = ChangeDetector()
            self.state = replace(state, steps=self.state.steps)
            self._emit(Event("reset", self.state.steps, module or "all modules and the selector"))
        self.delivery.deliver()

    def _start_watching_anew(self) -> None:
        """Nothing is known of the images so far: how they look, who fits them, whether one tells of the next."""
        self._recent, self._tried, self._continuity = self._recent[:0], Prototypes(), Continuity()

    def save(self, path: str | Path) -> None:
        persistence.save(Path(path), self.state, self.network.bundle.hash)

    def restore(self, path: str | Path) -> None:
        with self._lock:
            self.state = persistence.restore(Path(path), self._exported, self.network)
            self._emit(Event("restore", self.state.steps, str(path)))
        self.delivery.deliver()

    def note(self, kind: Kind, reason: str) -> None:
        """Something happened that is no step."""
        with self._lock:
            self._emit(Event(kind, self.state.steps, reason))
        self.delivery.deliver()

    def _judge(self, network: Network, batch: ImageBatch, before: State, proposal: Proposal) -> "_Judged":
        """What is predicted, what the state becomes, and why if it is not the proposal's."""
        passed, config, classes = proposal.passed, self.config, network.bundle.manifest.dims.classes
        modules = network.modules
        if any(n in before.affines for n in passed.left_out):  # what was learned may be why
            plain = self._predict(network, batch, self._exported, self._recent, Prototypes())[0]
            return _Judged(plain, self._exported, "rollback", "logits are not finite")
        blend = proposal.blend
        if not proposal.state.finite or not np.isfinite(blend.logits).all():
            return self._unchanged(modules, passed, before, "the update is not finite")
        if proposal.gathering:
            reason = f"{proposal.state.gathered.reliable} of {config.min_reliable} reliable samples"
            return _Judged(self._without_step(modules, passed, proposal.state), proposal.state, "gather", reason)
        needed = config.min_reliable if config.sam == "sample" else min(config.min_reliable, 1)
        learned = proposal.state.prototypes is not before.prototypes
        if config.sam is not None and proposal.reliable < needed and not learned:
            return self._unchanged(modules, passed, before, f"{proposal.reliable} reliable samples, want {needed}")
        probabilities = blend.probabilities
        labels = (*before.labels, *map(int, probabilities.argmax(axis=1)))[-guard.window(classes) :]
        state = replace(proposal.state, labels=labels)
        if config.recovery is not None and proposal.loss is not None:
            old = proposal.loss if before.average is None else before.average
            average = AVERAGE * old + (1 - AVERAGE) * proposal.loss
            if average < config.recovery * log(classes):
                reason = f"recovery: the moving average of the entropy is {average:.3f}"
                return replace(self._unchanged(modules, passed, before, reason), state=self._exported)
            state = replace(state, average=average)
        mean = float(selector.entropy(probabilities).mean())
        if not config.guard or not guard.suspicion(labels, mean, classes):
            return _Judged(blend, replace(state, evidence=()))
        plain = self._unadapted(network, batch, passed, before)
        evidence = before.evidence + guard.compare(probabilities, plain.probabilities)
        evidence = evidence[-guard.window(classes) :]
        collapse = guard.verdict(evidence, classes)
        if collapse:
            return _Judged(plain, self._exported, "rollback", collapse)
        return _Judged(blend, replace(state, evidence=evidence))

    def _keep_score(
        self, network: Network, batch: ImageBatch, before: State, proposal: Proposal, judged: "_Judged"
    ) -> "_Judged":
        """Compare some images with the exported weights.

        Where these are contradicted too often, the step is not taken, and what was learned before it goes back a
        part of the way, or altogether. Prototypes alone are not judged: they cannot run away.
        """
        learned = before.affines or before.selector is not self._exported.selector
        if not self.config.guard or not learned or judged.state is self._exported:
            return judged
        adapted, every = judged.blend.probabilities, np.arange(len(batch))
        few = (before.samples + every) % guard.CANARY == 0
        if not few.any():
            return judged

        def compare(samples: NDArray[np.intp]) -> Blend:
            part, seen = batch.part(samples), (proposal.passed.rows(samples),)
            return self._predict(network, part, self._exported, self._recent, Prototypes(), seen, urgent=False)[0]

        try:
            plain = compare(every[few])
            compared = before.compared + guard.contradictions(adapted[few], plain.probabilities)
            if guard.look_closer(compared[-guard.RECENT :]) and not few.all():
                plain = compare(every)
                compared += guard.contradictions(adapted[~few], plain.probabilities[~few])
        except NotFiniteError:  # the exported weights say nothing to compare with
            return judged
        compared = compared[-guard.RECENT :]
        share = guard.may_stay(compared)
        if share == 1:
            kept = 1.0 if len(compared) == guard.RECENT else before.kept
            return replace(judged, state=replace(judged.state, compared=compared, kept=kept))
        kept = before.kept * share
        often = guard.HELPFUL / share
        reason = f"the exported weights are contradicted {often:.1f} times as often as they expect to be wrong"
        if kept < guard.GIVE_UP:
            return _Judged(plain, self._exported, "rollback", f"{reason}: all that was learned is taken back")
        state = before.shrunk(share, self._exported.selector, network.modules.exported)
        state = replace(state, compared=(), kept=kept)
        return _Judged(plain, state, "rollback", f"{reason}: {share:.0%} of what was learned stays")

    def _unchanged(self, modules: Modules, passed: Pass, before: State, reason: str) -> "_Judged":
        return _Judged(self._without_step(modules, passed, before), before, "rollback", reason)

    def _without_step(self, modules: Modules, passed: Pass, state: State) -> Blend:
        """What these modules say with the selector and the prototypes as they are."""
        config = self.config
        if not beyond.applies(modules, config):
            return blend(passed, selector.weights(state.selector, passed.x_hat, passed.logits), config)[0]
        looks = beyond.looks_like(modules, self._recent, passed.x_hat, config)
        say = beyond.who_has_a_say(modules, state.prototypes, looks, config)
        return beyond.predict(modules, state, passed, say.weights(modules, state, passed), config)

    def _unadapted(self, network: Network, batch: ImageBatch, passed: Pass, state: State) -> Blend:
        """The same images through the exported weights; modules that never learned need no second pass."""
        changed = [n for n in passed.names if n in state.affines]
        logits, features = passed.logits.copy(), passed.features.copy()
        if changed:
            again = network.run(batch, {}, changed)
            columns = [passed.names.index(n) for n in again.names]
            logits[:, columns], features[:, columns] = again.logits, again.features
        plain = replace(passed, logits=logits, features=features, activations=None, gradient=None)
        return self._without_step(network.modules, plain, self._exported)

    def _emit(self, event: Event) -> Event:
        """Called under the lock: events are in the order of what they tell."""
        event = replace(event, frame=self.frame)
        self.events.append(event)
        self.counts[event.kind] += 1
        self.delivery.put(event)
        return event


@dataclass(frozen=True)
class _Judged:
    """What becomes of a proposal."""

    blend: Blend
    state: State
    kind: Kind = "step"
    reason: str = ""


def _finite(blend: Blend) -> Blend:
    """The blend, which must be numbers."""
    if not (np.isfinite(blend.logits).all() and np.isfinite(blend.weights).all()):
        raise NotFiniteError("what the modules say together is not finite; look at the selector's weights")
    return blend


def _describe(proposal: Proposal, judged: _Judged, step: int, stages: Stages) -> Event:
    passed = proposal.passed
    means = passed.widened(proposal.weights).mean(axis=0)
    return Event(
        kind=judged.kind,
        step=step,
        reason=judged.reason,
        top=passed.names[proposal.order[0]],
        weights={n: float(w) for n, w in zip(passed.loaded, means, strict=True)},
        samples=len(proposal.weights),
        reliable=proposal.reliable,
        entropy_before=proposal.entropy_before,
        entropy_after=proposal.entropy_after,
        guessed=proposal.guessed,
        milliseconds=stages.milliseconds,
    )


def _newest(recent: Array, x_hat: Array) -> Array:
    return np.concatenate([recent, x_hat])[-max(WINDOW, len(x_hat)) :]


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
