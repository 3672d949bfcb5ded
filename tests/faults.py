"""Disks that fail or are slow, processes that die, power cuts: at the n-th call of the operating system."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import pytest

from pluto_edge import _files

# fail: the call says that the disk is full. kill: the process is gone. lose: the power is gone, and with it what
# was written and not flushed. delay: before the call somebody else comes and looks.
Mode = Literal["fail", "kill", "lose", "delay"]

CALLS = ("open", "rename", "replace", "link", "unlink", "rmdir", "mkdir")


class Killed(BaseException):
    """What nothing catches. After it no call reaches the disk, so that no clean-up is done either."""


class Faults:
    """Counts calls: `CALLS`, `fsync`, a file's `write`, the exchange of names. The n-th goes wrong."""

    def __init__(
        self, at: int | None = None, mode: Mode = "fail", look: Callable[[], object] = lambda: None
    ) -> None:
        self.at, self.mode, self.look = at, mode, look
        self.calls, self.dead, self._looking = 0, False, False
        self._written: dict[int, int] = {}  # inode to a handle of our own: written and not flushed

    def hit(self) -> None:
        if self.dead:
            raise Killed
        if self._looking:
            return
        self.calls += 1
        if self.calls != self.at:
            return
        if self.mode == "delay":
            self._looking = True
            self.look()
            self._looking = False
        elif self.mode == "fail":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        else:
            self.dead = True
            raise Killed

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            self.hit()
            return call(*arguments, **options)

        return wrapped

    def written(self, handle: int) -> None:
        self._written.setdefault(os.fstat(handle).st_ino, os.dup(handle))

    def flushed(self, handle: int) -> None:
        """Nothing is flushed: where no power cut is played, the power stays on."""
        own = self._written.pop(os.fstat(handle).st_ino, None)
        if own is not None:
            os.close(own)

    def end(self) -> None:
        """What a power cut leaves of files that were not flushed: their names."""
        for handle in self._written.values():
            if self.dead and self.mode == "lose":
                os.ftruncate(handle, 0)
            os.close(handle)
        self._written.clear()


class _File:
    def __init__(self, file: Any, faults: Faults) -> None:
        self._file, self._faults = file, faults

    def write(self, data: Any) -> Any:
        self._faults.hit()
        self._faults.written(self._file.fileno())
        return self._file.write(data)

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
        patch.setattr(os, "fsync", faults.around(faults.flushed))
        patch.setattr(os, "fdopen", lambda *a, **k: _File(real_fdopen(*a, **k), faults))
        patch.setattr(_files, "_exchange", faults.around(real_exchange) if exchange else lambda *_: False)
        try:
            yield faults
        finally:
            faults.end()


def every_fault(
    prepare: Callable[[], None],
    act: Callable[[], object],
    check: Callable[[], object],
    exchange: bool = True,
    step: int = 1,
) -> int:
    """`act` on a fresh `prepare`, with a fault at every call in turn, or at every so many (`step`).

    After each, `check` must pass, and again after a second `act` without faults. Gives how many calls there are.
    """
    prepare()
    with faulty(Faults(), exchange) as clean:
        act()
    check()
    assert clean.calls
    for number, mode in enumerate(get_args(Mode)):
        for at in range(1 + number * step // 4, clean.calls + 1, step):
            prepare()
            try:
                with faulty(Faults(at, mode, check), exchange):
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
