"""Whether a step is taken: each rule by itself, on stand-ins for what was computed."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from pluto_edge import AdaptConfig
from pluto_edge.modules import SelectorWeights
from pluto_edge.runtime import guard
from pluto_edge.runtime.algorithm.prototypes import Prototypes, Seen
from pluto_edge.runtime.algorithm.selection import Blend
from pluto_edge.runtime.algorithm.state import Gathered, State
from pluto_edge.runtime.engine.affines import Affines
from pluto_edge.runtime.engine.passes import Pass
from pluto_edge.runtime.judging import judge

CLASSES = 4
SELECTOR = SelectorWeights.random(width=6, classes=CLASSES, hidden_x=3, hidden_l=3, out=3)
EXPORTED = State(SELECTOR)
LEARNED = Affines(np.full((3, 6), 2, np.float32), np.ones((3, 6), np.float32))
UNMOVED = Prototypes({"one": Seen(np.ones(CLASSES), np.ones((CLASSES, 6)), np.full(1, 5.0), np.ones(6))})
CONFIG = AdaptConfig(guard=False)


def blend(labels: list[int], sure: float = 3.0) -> Blend:
    logits = np.zeros((len(labels), CLASSES))
    logits[np.arange(len(labels)), labels] = sure
    return Blend(logits, np.ones((len(labels), 1)), np.arange(1), ("one",))


PROPOSED = blend([0, 1, 2, 3] * 4)
UNCHANGED, PLAIN = blend([1] * 16), blend([3, 2, 1, 0] * 4)  # with the state as it was, and as exported


def ran(*left_out: str) -> Pass:
    logits, features = np.zeros((16, 1, CLASSES), np.float32), np.zeros((16, 1, 6), np.float32)
    return Pass(("one",), ("one",), logits, features, np.zeros((16, 6), np.float32), ("",), left_out=left_out)


class Attempt:
    """Says what is written above, whatever it is asked with."""

    def __init__(self, known: State = EXPORTED, config: AdaptConfig = CONFIG, plain: Blend = PLAIN) -> None:
        self.known, self.config, self.plain = known, config, plain
        self.exported, self.classes, self.beyond = EXPORTED, CLASSES, False
        self.batch = range(16)
        self.network = SimpleNamespace(modules=SimpleNamespace(exported={"one": LEARNED.times(0.5)}))

    @property
    def has_prototypes(self) -> bool:
        return self.beyond and self.config.prototypes

    def fall_back(self) -> Blend:
        return self.plain

    def said(self, passed: Pass, state: State) -> Blend:
        return self.plain if state is EXPORTED and self.known is not EXPORTED else UNCHANGED

    def said_without_gradients(self, samples: np.ndarray, passed: Pass) -> tuple[Blend, Prototypes]:
        return replace(self.plain, logits=self.plain.logits[samples]), UNMOVED


def proposal(**changes: object) -> SimpleNamespace:
    values = {"state": replace(EXPORTED, affines={"one": LEARNED}), "blend": PROPOSED, "passed": ran()}
    return SimpleNamespace(**{**values, "reliable": 9, "loss": 1.0, "gathering": False, **changes})


def test_a_plain_step_is_taken() -> None:
    judged = judge(Attempt(), proposal())  # type: ignore[arg-type]
    assert (judged.kind, judged.reason, judged.over) == ("step", "", False)
    assert judged.blend is PROPOSED and judged.state.affines == {"one": LEARNED}
    assert judged.state.labels == tuple([0, 1, 2, 3] * 4)


@pytest.mark.parametrize(
    "change",
    [
        {"state": replace(EXPORTED, affines={"one": LEARNED.times(float("inf"))})},
        {"blend": replace(PROPOSED, logits=PROPOSED.logits * np.nan)},
    ],
)
def test_what_is_not_finite_changes_nothing(change: dict[str, object]) -> None:
    judged = judge(Attempt(), proposal(**change))  # type: ignore[arg-type]
    assert (judged.kind, judged.reason, judged.over) == ("rollback", "the update is not finite", False)
    assert judged.state is EXPORTED and judged.blend is UNCHANGED


def test_a_module_that_learned_and_says_nothing_finite_takes_all_back() -> None:
    known = replace(EXPORTED, affines={"one": LEARNED})
    judged = judge(Attempt(known), proposal(passed=ran("one")))  # type: ignore[arg-type]
    assert (judged.kind, judged.reason, judged.over) == ("rollback", "logits are not finite", True)
    assert judged.state is EXPORTED and judged.blend is PLAIN
    assert judge(Attempt(known), proposal(passed=ran("other"))).kind == "step"  # type: ignore[arg-type]


def test_too_few_reliable_images_gather_or_change_nothing() -> None:
    config = replace(CONFIG, min_reliable=8)
    gathering = replace(EXPORTED, gathered=Gathered(reliable=5))
    judged = judge(Attempt(config=config), proposal(state=gathering, gathering=True))  # type: ignore[arg-type]
    assert (judged.kind, judged.reason) == ("gather", "5 of 8 reliable samples")
    assert judged.state is gathering and judged.blend is UNCHANGED
    judged = judge(Attempt(config=config), proposal(reliable=0))  # type: ignore[arg-type]
    assert (judged.kind, judged.reason) == ("rollback", "0 reliable samples, want 1")


def test_prototypes_need_no_reliable_image() -> None:
    attempt = Attempt()
    attempt.beyond = True
    assert judge(attempt, proposal(reliable=0)).kind == "step"  # type: ignore[arg-type]
    attempt.config = replace(CONFIG, prototypes=False)
    assert judge(attempt, proposal(reliable=0)).kind == "rollback"  # type: ignore[arg-type]


def test_recovery_starts_over_when_the_moving_average_is_low() -> None:
    config = replace(CONFIG, recovery=0.5)
    low = 0.4 * np.log(CLASSES)
    judged = judge(Attempt(config=config), proposal(loss=low))  # type: ignore[arg-type]
    assert judged.over and "recovery" in judged.reason
    known = replace(EXPORTED, average=1.3)  # it was high, and one batch does not decide
    judged = judge(Attempt(known, config), proposal(loss=low))  # type: ignore[arg-type]
    assert judged.kind == "step" and judged.state.average == pytest.approx(0.9 * 1.3 + 0.1 * low)


def test_a_collapse_is_told_from_one_class_by_the_exported_weights() -> None:
    one_class = proposal(blend=blend([2] * 16))
    known = replace(EXPORTED, labels=(2,) * 48)
    guarded = replace(CONFIG, guard=True)
    judged = judge(Attempt(known, guarded), one_class)  # type: ignore[arg-type]
    assert judged.over and "collapse of classes" in judged.reason and judged.blend is PLAIN
    judged = judge(Attempt(known, guarded, plain=blend([2] * 16)), one_class)  # type: ignore[arg-type]
    assert judged.kind == "step" and len(judged.state.evidence) == 16  # it was suspected, and let go
    judged = judge(Attempt(known), one_class)  # type: ignore[arg-type]
    assert judged.kind == "step" and judged.state.evidence == ()  # nobody asked


def test_gradual_loss_goes_back_by_degrees_and_then_altogether(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "may_stay", lambda compared: 0.4)
    guarded = replace(CONFIG, guard=True)
    known = replace(EXPORTED, affines={"one": LEARNED})
    judged = judge(Attempt(known, guarded), proposal())  # type: ignore[arg-type]
    assert judged.kind == "rollback" and "40% of what was learned stays" in judged.reason and not judged.over
    np.testing.assert_allclose(judged.state.affines["one"].scale, 1 + 0.4)  # from 1, as exported, towards 2
    assert judged.state.kept == pytest.approx(0.4) and judged.state.compared == ()
    assert judged.state.prototypes.modules["one"].count == pytest.approx(0.4 * 5)  # of what no gradient has touched
    known = replace(known, kept=0.2)
    judged = judge(Attempt(known, guarded), proposal())  # type: ignore[arg-type]
    assert judged.over and "all that was learned is taken back" in judged.reason
    assert not judged.state.affines and not judged.state.prototypes.modules


def test_what_agrees_with_the_exported_weights_is_written_down() -> None:
    guarded = replace(CONFIG, guard=True)
    known = replace(EXPORTED, affines={"one": LEARNED}, kept=0.5)
    judged = judge(Attempt(known, guarded, plain=PROPOSED), proposal())  # type: ignore[arg-type]
    assert judged.kind == "step" and len(judged.state.compared) == 16 / guard.CANARY
    assert judged.state.kept == 0.5 and judged.state.unmoved is UNMOVED


def test_before_any_gradient_both_sides_have_the_same_prototypes() -> None:
    state = replace(EXPORTED, prototypes=UNMOVED)
    judged = judge(Attempt(EXPORTED, replace(CONFIG, guard=True)), proposal(state=state))  # type: ignore[arg-type]
    assert judged.state.unmoved is UNMOVED and judged.state.compared == ()


def test_nothing_is_compared_before_anything_was_learned() -> None:
    guarded = replace(CONFIG, guard=True)
    assert judge(Attempt(EXPORTED, guarded), proposal()).state.compared == ()  # type: ignore[arg-type]
