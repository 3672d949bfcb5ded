"""What a fork breaks: locks that a thread of the parent held, and threads that are not there any more.

A forked process has one thread. `renew()` of every object that has locks or threads is called in it, before
anything else runs there.
"""

import os
from typing import Protocol
from weakref import WeakSet

__all__ = ["renew_after_fork"]


class Renewable(Protocol):
    """Something with locks or threads."""

    def renew(self) -> None:
        """Locks that nobody holds, and no thread."""


_all: WeakSet[Renewable] = WeakSet()


def renew_after_fork(thing: Renewable) -> None:
    """Call `thing.renew()` in every process that is forked from this one, for as long as the thing lives."""
    _all.add(thing)


def _renew() -> None:
    for thing in list(_all):
        thing.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
