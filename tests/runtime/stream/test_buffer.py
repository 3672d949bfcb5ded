"""The frames of a stream that the next step learns from."""

from types import SimpleNamespace

import pytest

from pluto_edge.errors import ConfigError
from pluto_edge.runtime.stream.buffer import Frame, FrameBuffer


def frames(count: int) -> list[Frame]:
    return [Frame(SimpleNamespace(), SimpleNamespace()) for _ in range(count)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batch", "every", "due"),
    [
        (4, None, [4, 8, 12]),
        (4, 4, [4, 8, 12]),
        (4, 2, [4, 6, 8, 10, 12]),
        (4, 6, [6, 12]),
        (1, None, [*range(1, 13)]),
    ],
)
def test_a_step_is_due_when_it_is_full_and_every_so_often(batch: int, every: int | None, due: list[int]) -> None:
    buffer, given = FrameBuffer(batch, every), frames(12)
    found = {n: got for n, frame in enumerate(given, 1) if (got := buffer.add(frame))}
    assert list(found) == due
    for number, got in found.items():
        assert got == given[number - batch : number]  # the newest, oldest first
    assert len(buffer) == batch


def test_what_is_cleared_is_not_learned_from() -> None:
    buffer = FrameBuffer(4)
    given = frames(7)
    for frame in given[:3]:
        assert not buffer.add(frame)
    buffer.clear()
    assert len(buffer) == 0
    assert [buffer.add(f) for f in given[3:6]] == [[], [], []]
    assert buffer.add(given[6]) == given[3:]


def test_what_it_gave_is_not_changed_later() -> None:
    buffer = FrameBuffer(2, 1)
    first, second, third = frames(3)
    buffer.add(first)
    due = buffer.add(second)
    buffer.add(third)
    buffer.clear()
    assert due == [first, second]


def test_no_step_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="every: want at least 1 frame"):
        FrameBuffer(4, 0)
