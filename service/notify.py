"""What systemd is told (sd_notify): lines in a datagram to the socket that it names in the environment.

https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html
"""

import logging
import os
import socket
from time import CLOCK_MONOTONIC, clock_gettime_ns

__all__ = ["notify", "ready", "reloading", "stopping", "watchdog"]

log = logging.getLogger("pluto_edge.service")


def notify(*lines: str) -> None:
    """Send lines, if anybody wants to know; one who does not listen is no reason to end."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # a name in the abstract namespace
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.settimeout(1.0)
            channel.sendto("\n".join(lines).encode(), address)
    except OSError as error:
        log.debug("systemd was not told %s: %s", lines, error)


def ready(status: str) -> None:
    """The service runs, or runs again after a reload."""
    notify("READY=1", f"STATUS={status}")


def reloading() -> None:
    """The configuration is read anew; `ready` ends that. The time tells systemd that it is about this reload."""
    notify("RELOADING=1", f"MONOTONIC_USEC={clock_gettime_ns(CLOCK_MONOTONIC) // 1000}")


def watchdog(status: str) -> None:
    """Every part of the service makes progress."""
    notify("WATCHDOG=1", f"STATUS={status}")


def stopping() -> None:
    """It ends on purpose."""
    notify("STOPPING=1")
