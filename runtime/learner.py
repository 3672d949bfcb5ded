"""One line of learning: a state, and the steps that change it.

Steps are transactions. A step computes a proposal from the state and the modules as they are; the state is replaced
in one assignment at the very end, or not at all. Every state that is set has a version of its own, and a step is
taken only if the version that it started from is still there. Predictions read the state once, so they never see
half a step. Events are written down under the lock and handed to `on_event` under none.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pluto_edge.config import AdaptConfig
from pluto_edge.errors import ConfigError, NotFiniteError
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime import judging, persistence
from pluto_edge.runtime.algorithm.changes import ChangeDetector
from pluto_edge.runtime.algorithm.prototypes import Prototypes
from pluto_edge.runtime.algorithm.selection import Blend
from pluto_edge.runtime.algorithm.state import State
from pluto_edge.runtime.algorithm.step import Proposal
from pluto_edge.runtime.attempt import Attempt
from pluto_edge.runtime.engine.forks import renew_after_fork
from pluto_edge.runtime.engine.network import Network
from pluto_edge.runtime.engine.passes import Look, Pass
from pluto_edge.runtime.engine.timing import Stages
from pluto_edge.runtime.journal import Journal
from pluto_edge.runtime.judging import Judged
from pluto_edge.runtime.prediction import predict, require_finite
from pluto_edge.runtime.recent import Recent
from pluto_edge.runtime.types import Event, Kind

__all__ = ["Learner"]


class Learner:
    """What was learned (`state`) and what is known of the last images (`recent`), over a network that others share.

    `predict` learns nothing and keeps nothing. A runtime calls `step`. A stream calls `watch` and `follow` for each
    frame, and later `step` with what `watch` has seen of a batch of them.
    """

    def __init__(
        self, network: Network, config: AdaptConfig, on_event: Callable[[Event], None] | None = None
    ) -> None:
        dims = network.bundle.manifest.dims
        rows = range(2 * network.bundle.manifest.learn_from, dims.ln_shape[0])
        for row in config.ln_layers or ():
            if row not in rows:
                raise ConfigError(f"ln_layers: this bundle's rows {rows.start} to {rows.stop - 1} learn, got {row}")
        self.network = network
        self.config = config
        self.recent = Recent.nothing(dims.width)
        self._exported = State(network.selector)
        self._state = self._exported
        self._journal = Journal(on_event)
        self._changes = ChangeDetector()  # of the images that `step` was given; a stream has its own
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Called in a forked process: no lock is held there."""
        self._lock = threading.RLock()  # held to replace the state
        self._steps = threading.Lock()  # held for a whole step: they come one after another

    # What there is to see

    @property
    def state(self) -> State:
        """Settable: what is set gets a version of its own, so that a step that is under way is not taken."""
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        with self._lock:
            self._state = replace(state, version=self._state.version + 1)

    @property
    def events(self) -> tuple[Event, ...]:
        """The last thousand, oldest first."""
        return tuple(self._journal.events)

    @property
    def counts(self) -> Counter[Kind]:
        """How many events of each kind there were, also those that `events` has dropped."""
        return self._journal.counts

    @property
    def frames(self) -> int:
        """How many images were watched; every event says how many it had been then."""
        return self._journal.frames

    @property
    def callback_errors(self) -> int:
        """How often `on_event` has raised."""
        return self._journal.errors

    # Predictions

    def predict(self, batch: ImageBatch, activations: bool = False) -> tuple[Blend, Pass]:
        """The blend, and the pass it was made from."""
        network = self.network.snapshot()
        state = self.state.of(network.modules.digests)
        recent = self.recent.x_hat
        tried = state.prototypes
        with network.graphs.gate.urgent():  # somebody waits for it: it goes before what learns
            blend, passed, _ = predict(network, batch, state, recent, tried, self.config, (), activations)
        self._tell_left_out(passed)
        self._journal.deliver()
        return blend, passed

    def exported(self, batch: ImageBatch, seen: Sequence[Pass] = ()) -> Blend:
        """What the bundle says of these images as it was exported, as if they were the first that it sees.

        What `seen` (passes of the same images) has of it already is not computed again.
        """
        network = self.network.snapshot()
        recent = self.recent.anew().x_hat
        with network.graphs.gate.urgent():
            return predict(network, batch, self._exported, recent, Prototypes(), self.config, seen).blend

    def watch(self, batch: ImageBatch, activations: bool = False) -> tuple[Blend, Pass]:
        """`predict` for a stream: how its images look, and which modules fit them, is kept for the next ones.

        That decides who has a say. Nothing is learned.
        """
        network = self.network.snapshot()
        state = self.state.of(network.modules.digests)
        recent = self.recent.x_hat
        tried = self.recent.tried_by(network.modules)
        with network.graphs.gate.urgent():
            blend, passed, tried = predict(network, batch, state, recent, tried, self.config, (), activations)
        with self._lock:
            self.recent = self.recent.watched(passed.x_hat, tried, network.modules)
        self._tell_left_out(passed)
        self._journal.deliver()
        self._journal.frames += len(batch)
        return blend, passed

    def follow(self, blend: Blend, keep: bool = True) -> Blend:
        """What was said of the stream's next images, in the light of those before them and of each other.

        Without `keep` it is as if they had not been there, once they are predicted.
        """
        if not (self.config.continuity and self.network.modules.references):
            return blend
        with self._lock:
            followed, after = self.recent.follow(blend)
            self.recent = after if keep else self.recent
        return followed

    def _tell_left_out(self, passed: Pass) -> None:
        """One event when a module is left out, and none until it was back in between."""
        with self._lock:
            new, self.recent = self.recent.leave_out(passed)
            for name in new:
                self._write("module", f"{name} is left out: what it says is not finite")

    # Steps

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
            self._journal.deliver()

    def _step(self, batch: ImageBatch, seen: Sequence[Pass]) -> tuple[Blend, Event]:
        stages = Stages()
        network = self.network.snapshot()
        with self._lock:  # state and recent images belong together
            attempt = Attempt(batch, seen, network, self.state, self.recent, self._exported, self.config)
        try:
            look = attempt.look()
            if look is not None and not seen:
                self._look_out(look)
                with self._lock:
                    attempt = replace(attempt, before=self.state, recent=self.recent.with_images(look.x_hat))
            proposal = attempt.propose(look, stages)
            with stages("guard"):
                judged = judging.judge(attempt, proposal)
            require_finite(judged.blend)
        except Exception as error:
            return self._failed(attempt, error)
        return self._end(attempt, proposal, judged, stages)

    def _look_out(self, look: Look) -> None:
        """Where the images look like another domain than those before them, learning starts anew."""
        changes = [c for x_hat in look.x_hat if (c := self._changes.update(0.0, (), x_hat))]
        if changes:
            self._reopen(changes[-1])

    def _end(self, attempt: Attempt, proposal: Proposal, judged: Judged, stages: Stages) -> tuple[Blend, Event]:
        """The step as it was judged, unless another state than it started from is there by now."""
        before = attempt.before
        counted = replace(
            judged.state.learned_with(attempt.network.modules.digests),
            steps=before.steps + 1,
            samples=before.samples + len(attempt.batch),
            reliable=proposal.reliable / len(attempt.batch),
            rollbacks=before.rollbacks + (judged.kind == "rollback"),
        )
        with self._lock:
            if not self._take(attempt, counted, keep_images=judged.kind != "rollback"):
                judged = replace(judged, kind="rollback", reason="the state was replaced during the step")
            event = self._journal.write(judging.describe(proposal, judged, self.state.steps, stages))
        self._tell_left_out(proposal.passed)
        return judged.blend, event

    def _failed(self, attempt: Attempt, error: Exception) -> tuple[Blend, Event]:
        """Back to the exported weights where what was learned is why nothing is finite; else the error goes on."""
        plain = None
        if isinstance(error, NotFiniteError) and attempt.known.affines:
            with suppress(NotFiniteError):
                plain = attempt.fall_back()
        before = attempt.before
        state = before if plain is None else self._exported
        counted = replace(state, steps=before.steps + 1, rollbacks=before.rollbacks + 1)
        reason = f"{type(error).__name__}: {error}" if plain is None else "logits are not finite"
        with self._lock:
            self._take(attempt, counted, keep_images=plain is not None)
            event = self._write("rollback", reason, samples=len(attempt.batch))
        if plain is None:
            raise error
        return plain, event

    def _take(self, attempt: Attempt, state: State, *, keep_images: bool) -> bool:
        """Called under the lock: a step's state takes the place of the one that it started from, if that is there.

        Then the step's images may count among the recent ones; a stream's do already.
        """
        if self.state.version != attempt.before.version:
            return False
        self.state = state
        if keep_images and not attempt.seen:
            self.recent = replace(self.recent, x_hat=attempt.recent.x_hat)
        return True

    def drop_step(self) -> None:
        """A step that is under way will not be taken; nothing else changes."""
        with self._lock:
            self.state = self.state  # under a version that no step has started from

    # What is no step

    def reopen(self, reason: str) -> None:
        """Another domain: modules and prototypes start anew, from the exported selector; learned affines stay."""
        self._reopen(reason)
        self._journal.deliver()

    def _reopen(self, reason: str) -> None:
        with self._lock:
            self.state = self.state.reopened(self._exported.selector)
            self.recent = self.recent.anew()
            self._write("change", reason)

    def reset(self, module: str | None = None) -> None:
        """Back to the exported weights, bit for bit: all of it, or one module's affines."""
        with self._lock:
            if module is not None and module not in self.network.modules:
                raise ConfigError(f"no module {module!r}; there are: {', '.join(self.network.modules)}")
            if module is None:
                self.state = replace(self._exported, steps=self.state.steps)
                self.recent = self.recent.anew()
                self._changes = ChangeDetector()
            else:
                self.state = self.state.without_module(module)
            self._write("reset", module or "all modules and the selector")
        self._journal.deliver()

    def save(self, path: str | Path) -> None:
        """Write what was learned to a file."""
        persistence.save(Path(path), self.state, self.network.bundle.hash)

    def restore(self, path: str | Path) -> None:
        """Take up what was saved."""
        with self._lock:
            self.state = persistence.restore(Path(path), self._exported, self.network)
            self._write("restore", str(path))
        self._journal.deliver()

    def note(self, kind: Kind, reason: str) -> None:
        """Something happened that is no step."""
        with self._lock:
            self._write(kind, reason)
        self._journal.deliver()

    def _write(self, kind: Kind, reason: str, samples: int = 0) -> Event:
        """Called under the lock: events are in the order of what they tell."""
        return self._journal.write(Event(kind, self.state.steps, reason, samples=samples))
