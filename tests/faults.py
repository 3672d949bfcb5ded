"""Disks that fail and processes that die, at the n-th call of the operating system."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from pluto_edge import _files

Mode = Literal["fail", "kill"]

CALLS = ("open", "rename", "replace", "link", "unlink", "rmdir", "mkdir")


class Killed(BaseException):
    """What nothing catches. After it no call reaches the disk, so that no clean-up is done either."""


class Faults:
    """Counts calls: `CALLS`, `fsync`, a file's `write`, the exchange of names. The n-th goes wrong."""

    def __init__(self, at: int | None = None, mode: Mode = "fail") -> None:
        self.at, self.mode, self.calls, self.dead = at, mode, 0, False

    def hit(self) -> None:
        if self.dead:
            raise Killed
        self.calls += 1
        if self.calls == self.at:
            if self.mode == "kill":
                self.dead = True
                raise Killed
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            self.hit()
            return call(*arguments, **options)

        return wrapped


class _File:
    def __init__(self, file: Any, faults: Faults) -> None:
        self._file, self.write = file, faults.around(file.write)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()


@contextmanager
def faulty(faults: Faults, exchange: bool) -> Iterator[Faults]:
    """Within the block, this process's disk has these faults, and can exchange two names or not."""
    with pytest.MonkeyPatch.context() as patch:
        real_fdopen, real_exchange = os.fdopen, _files._exchange
        for name in CALLS:
            patch.setattr(os, name, faults.around(getattr(os, name)))
        patch.setattr(os, "fsync", faults.around(lambda handle: None))  # counted; the power stays on
        patch.setattr(os, "fdopen", lambda *a, **k: _File(real_fdopen(*a, **k), faults))
        patch.setattr(_files, "_exchange", faults.around(real_exchange) if exchange else lambda *_: False)
        yield faults


def every_fault(
    prepare: Callable[[], None], act: Callable[[], object], check: Callable[[], object], exchange: bool = True
) -> int:
    """`act` on a fresh `prepare`, with a fault at every call in turn.

    After each, `check` must pass, and again after a second `act` without faults. Gives how many calls there are.
    """
    prepare()
    with faulty(Faults(), exchange) as clean:
        act()
    check()
    assert clean.calls
    for mode in ("fail", "kill"):
        for at in range(1, clean.calls + 1):
            prepare()
            try:
                with faulty(Faults(at, mode), exchange):
                    act()
            except (OSError, Killed):
                pass
            check()
            with faulty(Faults(), exchange):
                act()
            check()
    return clean.calls


def hidden(folder: Path) -> list[str]:
    """Temporary files and folders that were left behind."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob(".*"))
