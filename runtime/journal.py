"""`Journal`: what has happened to a learner, and who is told."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace

from pluto_edge.runtime.delivery import Delivery
from pluto_edge.runtime.types import MAX_EVENTS, Event, Kind

__all__ = ["Journal"]


class Journal:
    """The last events, how many there were of each kind, and a callback that is handed every one.

    `write` is called under the learner's lock, so that events are in the order of what they tell; `deliver` is
    called under none, as a callback may call the learner.
    """

    def __init__(self, on_event: Callable[[Event], None] | None = None) -> None:
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self.counts: Counter[Kind] = Counter()  # also of events that `events` has dropped
        self.frames = 0  # of a stream, so far: every event says at which one it happened
        self._delivery = Delivery(on_event)

    def write(self, event: Event) -> Event:
        """Take the event down, as of the current frame; the callback is told of it with the next `deliver`."""
        event = replace(event, frame=self.frames)
        self.events.append(event)
        self.counts[event.kind] += 1
        self._delivery.put(event)
        return event

    def deliver(self) -> None:
        """Tell the callback all that it has not been told yet."""
        self._delivery.deliver()

    @property
    def errors(self) -> int:
        """How often the callback has raised."""
        return self._delivery.errors
