"""Lanes: pieces of a batch that are differentiated at the same time, each by threads of its own.

Two threads that share the work of one operator meet at its end, and what one of them wrote the other reads next.
Where processors share no cache, that takes longer than the work of a short operator, and half of a gradient's
operators are short. In a lane the images stay with one processor from the first operator to the last.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self, TypeVar

__all__ = ["Lanes"]

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Lanes:
    """`count` pieces of a batch at a time, of `images` each.

    A lane is a thread that calls the graph. Where there are more threads than lanes, the others help whoever calls:
    `threads` is what the graph is opened with, those and one that calls.
    """

    count: int
    images: int
    threads: int

    @classmethod
    def of(cls, threads: int, images: int, most: int | None = None) -> Self:
        """A lane for each thread, or `most`, with no more than `images` under way in all of them together."""
        count = min(threads, images, most or threads)
        return cls(count, images // count, threads - count + 1)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """The results in the order of the items; no item is taken before a lane is almost free for it."""
        if self.count == 1:
            yield from map(function, items)
            return
        with ThreadPoolExecutor(self.count, thread_name_prefix="pluto-lane") as pool:
            waiting: deque[Future[Result]] = deque()
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > self.count:  # one is ready for the lane that is free first
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
