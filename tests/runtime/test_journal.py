"""What has happened to a learner, and who is told."""

import pytest

from pluto_edge.runtime.journal import Journal
from pluto_edge.runtime.types import MAX_EVENTS, Event


def test_events_say_at_which_frame_they_happened() -> None:
    journal = Journal()
    first = journal.write(Event("step", 1))
    journal.frames += 5
    second = journal.write(Event("reset", 1, "all"))
    assert (first.frame, second.frame) == (0, 5)
    assert list(journal.events) == [first, second] and second.reason == "all"


def test_events_are_dropped_and_counted_all_the_same() -> None:
    journal = Journal()
    for number in range(MAX_EVENTS + 10):
        journal.write(Event("step" if number % 2 else "rollback", number))
    assert len(journal.events) == MAX_EVENTS and journal.events[0].step == 10
    assert journal.counts["step"] + journal.counts["rollback"] == MAX_EVENTS + 10
    assert journal.counts["change"] == 0


def test_the_callback_is_told_when_it_is_delivered_and_in_order() -> None:
    told: list[Event] = []
    journal = Journal(told.append)
    events = [journal.write(Event("step", n)) for n in range(3)]
    assert told == []
    journal.deliver()
    journal.deliver()
    assert told == events


def test_events_that_a_callback_causes_come_after_it() -> None:
    told: list[int] = []

    def callback(event: Event) -> None:
        if event.step == 0:
            journal.write(Event("reset", 7))
            journal.deliver()  # no recursion: the call above goes on with it
        told.append(event.step)

    journal = Journal(callback)
    journal.write(Event("step", 0))
    journal.write(Event("step", 1))
    journal.deliver()
    assert told == [0, 1, 7]


def test_what_a_callback_raises_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: Event) -> None:
        raise RuntimeError("the callback is on fire")

    journal = Journal(fail)
    for number in range(3):
        journal.write(Event("step", number))
    journal.deliver()
    assert journal.errors == 3 and caplog.text.count("on fire") >= 3


def test_an_interrupted_callback_leaves_the_rest_for_the_next_call() -> None:
    told: list[int] = []

    def callback(event: Event) -> None:
        told.append(event.step)
        if event.step == 0:
            raise KeyboardInterrupt

    journal = Journal(callback)
    journal.write(Event("step", 0))
    journal.write(Event("step", 1))
    with pytest.raises(KeyboardInterrupt):
        journal.deliver()
    assert told == [0]
    journal.deliver()
    assert told == [0, 1]
