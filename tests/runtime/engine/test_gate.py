"""Predictions go first, and learning gets on."""

import threading
from collections.abc import Callable

import pytest

from pluto_edge.runtime.engine.gate import PATIENCE, SHARE, Gate


def test_learning_waits_while_a_prediction_is_under_way() -> None:
    gate, passed = Gate(), threading.Event()
    learner = threading.Thread(target=lambda: (gate.turn().__enter__(), passed.set()))
    with gate.urgent():
        with gate.turn():
            pass  # a prediction itself waits for nobody
        learner.start()
        assert not passed.wait(0.05)
    assert passed.wait(20)
    learner.join()


def test_predictions_that_never_end_do_not_stop_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph waits as long as leaves learning its share of the time, by what the last one took."""
    now, waits = [0.0], []
    gate = Gate(clock=lambda: now[0])

    def wait_for(condition: threading.Condition, predicate: Callable[[], bool], timeout: float) -> bool:
        waits.append(timeout)
        now[0] += timeout
        return False

    monkeypatch.setattr(threading.Condition, "wait_for", wait_for)
    learning = 0.0
    for took in (0.01, 0.02, 0.03, 0.01, 5.0, 0.01):
        with gate.turn():
            now[0] += took
        learning += took
    assert waits[0] == PATIENCE  # before anything is known
    assert waits[1:] == pytest.approx([min(PATIENCE, t * (1 / SHARE - 1)) for t in (0.01, 0.02, 0.03, 0.01, 5.0)])
    assert (learning - 0.01) / (now[0] - waits[0] - 0.01) >= SHARE
    with gate.urgent(), gate.turn():
        now[0] += 1  # a prediction waits for nobody, and says nothing of what learning takes
    assert len(waits) == 6


def test_a_prediction_that_fails_is_over() -> None:
    """Else learning would wait for it for ever."""
    gate = Gate()
    with pytest.raises(KeyError), gate.urgent():
        raise KeyError
    waited = threading.Event()
    learner = threading.Thread(target=lambda: (gate.turn().__enter__(), waited.set()))
    learner.start()
    assert waited.wait(20)
    learner.join()


def test_nothing_is_under_way_in_a_forked_process() -> None:
    gate = Gate()
    prediction = gate.urgent()
    prediction.__enter__()
    gate.renew()  # as in the child of a fork, where the thread of the prediction is not
    passed = threading.Event()
    learner = threading.Thread(target=lambda: (gate.turn().__enter__(), passed.set()))
    learner.start()
    assert passed.wait(PATIENCE / 2)
    learner.join()
