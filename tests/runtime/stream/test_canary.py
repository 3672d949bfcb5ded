"""Signs of whether adaptation helps, without labels."""

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pluto_edge import Runtime, Stream
from pluto_edge.runtime.learner import Learner
from pluto_edge.runtime.stream.canary import EVERY, REACH, Canary

DIGITS = Path(__file__).parents[3] / "examples/digits"  # its bundle has a generalist and signatures
NONE_YET = (0, None, "", None, None)


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with Runtime(DIGITS / "bundle", threads=1) as opened:
        yield opened


@pytest.fixture
def images(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """80 frames in fog, of a seed in which learning changes one of the answers that are compared."""
    monkeypatch.setattr(sys, "path", [str(DIGITS), *sys.path])
    from camera import camera

    return [f.image for f in islice(camera(7, 80), 80, 160)]


def signs(stream) -> tuple[object, ...]:
    m = stream.metrics
    return m.compared, m.differing, m.leader, m.misfit, m.misfit_first


def test_every_16th_frame_is_compared_with_the_bundle_as_exported(runtime: Runtime, images) -> None:
    stream = runtime.stream(batch=16, background=False, on_change="mark")
    assert signs(stream) == NONE_YET
    differs, leads = [], []
    for number, image in enumerate(images, 1):
        label = stream(image).labels[0]
        if number % EVERY == 0:
            differs.append(label != runtime.predict(image).labels[0])  # nothing was fed to the runtime itself
        if stream.metrics.leader:
            leads.append((stream.metrics.leader, stream.metrics.misfit))
        assert stream.metrics.compared == len(differs)
    assert any(differs) and stream.metrics.differing == pytest.approx(np.mean(differs))
    leader, misfit = leads[-1]
    state, reference = stream.learner.state, runtime.learner.network.modules.references[leader]
    assert leader == state.top == "fog"
    assert misfit == state.prototypes.misfit(leader, reference) > 0
    assert stream.metrics.misfit_first == next(m for n, m in leads if n == leader)


def test_what_starts_anew_and_what_is_not_compared(runtime: Runtime, images, tmp_path: Path) -> None:
    stream = runtime.stream(batch=16, background=False)
    for image in images[:32]:
        stream(image)
    stream.save(tmp_path / "state")
    assert stream.metrics.compared == 2 and stream.metrics.misfit is not None
    stream.reset()
    assert signs(stream) == NONE_YET
    stream.frozen = True
    for image in images[:32]:
        stream(image)
    assert stream.metrics.compared == 0
    stream.restore(tmp_path / "state")
    assert stream.metrics.compared == 0
    stream.frozen = False
    for image in images[:16]:
        stream(image)
    assert stream.metrics.compared == 1
    stream.canary.restart()  # as a change of domain does
    assert stream.metrics.compared == 0


@pytest.mark.parametrize("on_change", ["reopen", "mark"])
def test_a_change_of_domain_starts_anew(runtime: Runtime, images, on_change) -> None:
    stream = runtime.stream(batch=16, background=False, on_change=on_change)
    for image in [*images[:60], *(np.full_like(i, 255) - i // 8 for i in images)]:
        changes, compared = stream.metrics.changes, stream.metrics.compared
        stream(image)
        if stream.metrics.changes > changes:
            assert compared > 1 and stream.metrics.compared <= 1
            return
    pytest.fail("no change was noticed")


def test_it_looks_back_so_far_and_no_farther(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    other = SimpleNamespace(probabilities=np.array([[0.9, 0.1]]))
    monkeypatch.setattr(runtime.learner, "exported", lambda *arguments: other)
    canary = Canary(runtime.learner)
    for _ in range(100):
        canary.compare(None, None, label=1)  # type: ignore[arg-type]
    assert canary.signs.compared == REACH // EVERY and canary.signs.differing == 1.0


def test_its_time_is_not_the_prediction_s(runtime: Runtime, images, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def slow(*arguments: object) -> None:
        nonlocal now
        now += 1000.0

    learner = Learner(runtime.learner.network, runtime.config)
    stream = Stream("timed", learner, None, batch=64, clock=lambda: now)
    monkeypatch.setattr(stream.canary, "compare", slow)
    for image in images[:16]:
        stream(image)
    assert now == 1000.0 and stream.metrics.latency_p99 == 0.0


def test_modules_without_a_signature(make_bundle, frames: np.ndarray) -> None:
    with Runtime(make_bundle(), threads=1) as runtime:
        stream = runtime.stream(batch=4, background=False)
        for image in (*frames, *frames):
            stream(image)
        assert stream.metrics.compared == 1 and stream.metrics.leader in runtime.modules
        assert stream.metrics.misfit is None and stream.metrics.misfit_first is None
