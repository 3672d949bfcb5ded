"""`pluto serve`: a service from its start to SIGTERM, with its page, probes and metrics, under systemd or alone."""

import logging
import select
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType

from pluto_edge.errors import PlutoError
from pluto_edge.service import health, notify
from pluto_edge.service.service import OpenCamera, Service
from pluto_edge.service.web import Web

__all__ = ["run"]

TICK = 1.0  # seconds

log = logging.getLogger("pluto_edge.service")


def run(file: Path, open: OpenCamera | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C; SIGHUP reads the configuration and the bundle anew."""
    with ExitStack() as stack:
        wishes = stack.enter_context(_signals())
        service = Service(file, open)
        web = stack.enter_context(Web(service))
        stack.enter_context(service)
        stack.callback(notify.stopping)  # before anything is closed
        print(f"{service.runtime}\npage at {web.url}", flush=True)
        notify.ready(service.status)
        while not wishes.end:
            wishes.wait(TICK)
            service.watch()
            if wishes.reload:
                wishes.reload = False
                threading.Thread(target=_reload, args=(service,), name="pluto-reload", daemon=True).start()
            problems = health.dead(service)
            if problems:
                log.error("no sign of life to systemd: %s", "; ".join(problems))
            else:
                notify.watchdog(service.status)


class _Wishes:
    """What signals have asked for. Their handler may do next to nothing: it runs between any two instructions."""

    def __init__(self) -> None:
        self.end = False
        self.reload = False
        self._woken, self._wake = socket.socketpair()
        for end in (self._woken, self._wake):
            end.setblocking(False)
        self._before = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)

    def take(self, number: int, frame: FrameType | None) -> None:
        """A signal has come."""
        if number == signal.SIGHUP:
            self.reload = True
        else:
            self.end = True

    def wait(self, seconds: float) -> None:
        """Until then, or until a signal comes."""
        select.select([self._woken], [], [], seconds)
        with suppress(BlockingIOError):
            self._woken.recv(4096)

    def close(self) -> None:
        """Signals are no longer waited for."""
        signal.set_wakeup_fd(self._before)
        self._woken.close()
        self._wake.close()


@contextmanager
def _signals() -> Iterator[_Wishes]:
    """From the first moment on: whoever reloads a service that has just started must not end it."""
    wishes = _Wishes()
    before = {n: signal.signal(n, wishes.take) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield wishes
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        wishes.close()


def _reload(service: Service) -> None:
    with suppress(PlutoError, OSError):  # logged, counted and told where it happens
        log.info("reloaded: %s", service.reload())
