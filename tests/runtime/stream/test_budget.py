"""How much a stream may learn."""

import pytest

from pluto_edge.errors import ConfigError
from pluto_edge.runtime.stream.budget import FIRST_IMAGES, FORGET, Budget


class Clock:
    """Time that passes when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_no_limit_takes_all_frames() -> None:
    budget = Budget(None)
    budget.spent(1e6, 1)
    assert budget.images(64) == 64


def test_a_share_of_time_is_idle_for_the_rest_of_it() -> None:
    clock = Clock()
    budget = Budget(0.25, clock)
    assert budget.images(64) == 64
    budget.spent(2.0, 64)  # a quarter: six seconds without a step follow
    for clock.now, images in ((0.0, 0), (5.9, 0), (6.0, 64)):
        assert budget.images(64) == images


def test_all_of_the_time_is_never_idle() -> None:
    budget = Budget(1.0, Clock())
    budget.spent(5.0, 64)
    assert budget.images(64) == 64


def test_milliseconds_take_as_many_frames_as_fit() -> None:
    budget = Budget(50.0, Clock())
    assert budget.images(64) == FIRST_IMAGES  # nobody knows yet what one costs
    assert budget.images(3) == 3
    budget.spent(0.08, 8)  # ten milliseconds each
    assert budget.images(64) == 5 and budget.images(2) == 2


def test_one_slow_step_is_not_the_last() -> None:
    budget = Budget(50.0, Clock())
    budget.spent(0.06, 1)
    tries = [budget.images(64) for _ in range(4)]
    assert tries == [0, 0, 1, 1] and 60 * FORGET > 50 >= 60 * FORGET**2


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf")])
def test_limits_that_make_no_sense(limit: float) -> None:
    with pytest.raises(ConfigError, match="budget: want a share"):
        Budget(limit)


def test_a_limit_that_changes_holds_from_the_next_step_on() -> None:
    """What the last step took is still known."""
    clock = Clock()
    budget = Budget(None, clock)
    budget.spent(0.08, 8)  # ten milliseconds each
    budget.limit = 50.0
    assert budget.limit == 50.0 and budget.images(64) == 5
    with pytest.raises(ConfigError, match="budget: want a share"):
        budget.limit = -1.0
    assert budget.limit == 50.0 and budget.images(64) == 5
    budget.limit = None
    assert budget.images(64) == 64
