"""Files of learned state: damaged, cut short, of other types and shapes, with a digest that is wrong or right.

Must happen: a `StoreError` or `BundleError`, and nothing changes; or a state with which predictions are finite.
Where the generation before it is whole, a file that is not is passed over for it, and nothing learned is lost.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

from safetensors import safe_open

from attacks.harness import Case, Escape, Parser
from attacks.mutate import hostile, mutate_bytes, mutate_file, mutate_json, mutate_tensors, to_safetensors
from attacks.world import check_prediction, frames, runtime
from pluto_edge import Runtime
from pluto_edge.errors import BundleError, StoreError
from pluto_edge.runtime import persistence

PREDICTED = 0.1  # of the states that are taken: a prediction costs as much as twenty restores


@contextmanager
def parser(place: Path) -> Iterator[Parser]:
    """Restores a state."""
    with _learned(place / "good") as (opened, good):
        file = place / "state"

        def parse(data: bytes) -> None:
            file.write_bytes(data)
            _restore(opened, file, predict=False)

        yield Parser(parse, [good])


@contextmanager
def attack(place: Path) -> Iterator[Case]:
    """Cases that restore a state whose bytes or tensors were changed."""
    with _learned(place / "good") as (opened, good):
        file, previous = persistence.generations(place / "state")
        with safe_open(place / "good", framework="numpy") as whole:
            metadata = whole.metadata()
            tensors = {k: whole.get_tensor(k) for k in whole.keys()}  # noqa: SIM118

        def case(rng: Random) -> None:
            file.write_bytes(_forged(rng, good, tensors, metadata))
            kept = rng.random() < 0.3
            if kept:
                previous.write_bytes(good)
            else:
                previous.unlink(missing_ok=True)
            try:
                _restore(opened, file, predict=rng.random() < PREDICTED)
            except StoreError as refused:
                if kept and "no whole state" in str(refused):
                    raise Escape("the generation before was whole and is lost") from refused
                raise

        yield case


def _forged(rng: Random, good: bytes, tensors: persistence.Tensors, metadata: dict[str, str]) -> bytes:
    """A state that is damaged, or one that says that it is whole."""
    if rng.random() < 0.6:
        return mutate_file(rng, good)
    made = mutate_tensors(rng, tensors) if rng.random() < 0.6 else tensors
    told = dict(metadata)
    if rng.random() < 0.6:
        told["counters"] = mutate_json(rng, metadata["counters"].encode()).decode("utf-8", "replace")
    if rng.random() < 0.1:
        told["schema_version"] = str(hostile(rng))[:40].encode("utf-8", "replace").decode()
    if rng.random() < 0.05:
        told["bundle"] = "0" * 64
    with suppress(ValueError):  # an impossible version
        told["digest"] = persistence.digest_of(made, told)
    data = to_safetensors(made, told)
    return mutate_bytes(rng, data, 1) if rng.random() < 0.1 else data


@contextmanager
def _learned(file: Path) -> Iterator[tuple[Runtime, bytes]]:
    """A runtime that has learned something, and what it saves of it."""
    with runtime() as opened:
        for _ in range(2):
            opened.step(frames())
        opened.save(file)
        yield opened, file.read_bytes()


def _restore(opened: Runtime, file: Path, predict: bool) -> None:
    before = opened.learner.state
    try:
        opened.restore(file)
    except (StoreError, BundleError):
        if opened.learner.state is not before:
            raise Escape("a state that was refused changed something") from None
        raise
    if not opened.learner.state.finite:
        raise Escape("a state that is not finite")
    if predict:
        check_prediction(opened.predict(frames()[:1]), 1)
