"""What is known of the images that came last."""

from types import SimpleNamespace

import numpy as np

from pluto_edge.runtime.algorithm.evidence import WINDOW
from pluto_edge.runtime.algorithm.prototypes import Prototypes, Seen
from pluto_edge.runtime.algorithm.selection import Blend
from pluto_edge.runtime.recent import Recent, newest

TRIED = Prototypes({"one": Seen.nothing(3, 4)})


def looks(count: int, value: float = 0.0) -> np.ndarray:
    return np.full((count, 4), value, np.float32)


def blend(*logits: list[float]) -> Blend:
    return Blend(np.array(logits), np.ones((len(logits), 1)), np.arange(1), ("one",))


def modules(**digests: str) -> SimpleNamespace:
    return SimpleNamespace(digests=digests)


def test_the_newest_looks_are_kept() -> None:
    recent = newest(looks(WINDOW), looks(3, 1.0))
    assert recent.shape == (WINDOW, 4) and recent.sum() == 12
    assert len(newest(recent, looks(2 * WINDOW, 2.0))) == 2 * WINDOW  # a large batch is not cut
    assert len(newest(looks(0), looks(2))) == 2


def test_a_step_that_is_not_taken_leaves_it_as_it_was() -> None:
    recent = Recent.nothing(4)
    assert len(recent.with_images(looks(5)).x_hat) == 5
    assert recent.x_hat.shape == (0, 4)


def test_what_was_tried_belongs_to_the_modules_that_were_tried() -> None:
    recent = Recent.nothing(4).watched(looks(2), TRIED, modules(one="a", two="b"))
    assert len(recent.x_hat) == 2
    assert recent.tried_by(modules(one="a", two="b")) is TRIED
    for others in (modules(one="a"), modules(one="a", two="c"), modules(one="a", two="b", three="c")):
        assert recent.tried_by(others) == Prototypes()


def test_a_run_of_one_class_after_another_speaks_for_the_next_image() -> None:
    recent = Recent.nothing(4)
    doubtful = blend([1.0, 1.2, 0.0])
    assert recent.follow(doubtful)[0].logits.argmax() == 1
    for run in ([0.0, 0.0, 4.0], [4.0, 0.0, 0.0]):
        for _ in range(20):
            followed, recent = recent.follow(blend(run))
        assert followed.logits.argmax() == np.argmax(run)
    assert recent.follow(doubtful)[0].logits.argmax() == 0


def test_a_module_is_left_out_anew_only_if_it_was_in_between() -> None:
    recent = Recent.nothing(4)
    told = []
    for ran, left_out in ((("one",), ("two",)), (("one",), ("two",)), (("one", "two"), ()), (("one",), ("two",))):
        new, recent = recent.leave_out(SimpleNamespace(names=ran, left_out=left_out))  # type: ignore[arg-type]
        told.append(new)
    assert told == [("two",), (), (), ("two",)]


def test_anew_is_as_if_no_image_had_come() -> None:
    _, left = Recent.nothing(4).leave_out(SimpleNamespace(names=(), left_out=("two",)))  # type: ignore[arg-type]
    _, recent = left.watched(looks(2), TRIED, modules(one="a")).follow(blend([4.0, 0.0, 0.0]))
    anew = recent.anew()
    assert anew.x_hat.shape == (0, 4)
    assert anew.tried == Prototypes() and anew.continuity.beliefs is None
    assert anew.left_out == {"two"}  # that is of modules, not of images
