"""`pluto serve`: many cameras as a service."""

import argparse
import os
import signal
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

from pluto_edge.errors import ConfigError

if TYPE_CHECKING:
    from pluto_edge.service.states import Running

TAKES_TOML = True  # its argument is a TOML file of its own, not one of options
PATIENCE = 120.0  # seconds that a reload may take


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Watch many cameras in one process, each with a stream of its own over one bundle. Cameras that are lost\n"
        "or stall are opened anew. Shows one page for all, metrics for Prometheus, /healthz and /readyz. SIGTERM\n"
        "saves what was learned and ends it; SIGHUP reads the configuration and the bundle anew."
    )
    parser.epilog = (
        "examples:\n"
        "  pluto serve --example > serve.toml     # a commented configuration\n"
        "  pluto serve --check serve.toml\n"
        "  pluto serve serve.toml -v\n"
        "  pluto serve --reload serve.toml        # asks the service that runs with it, and says what came of it"
    )
    parser.add_argument("config", metavar="CONFIG", type=Path, nargs="?", help="TOML file: see --example")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--check", action="store_true", help="say what is wrong with the configuration, or ok")
    group.add_argument("--example", action="store_true", help="print a commented configuration")
    group.add_argument("--reload", action="store_true", help="have the running service read it and its bundle anew")


def run(options: argparse.Namespace) -> int:
    from pluto_edge.service.config import example, read

    if options.example:
        print(example(), end="")
        return 0
    if options.config is None:
        raise ConfigError("which configuration? For example: pluto serve serve.toml; --example prints one")
    if options.check:
        config = read(options.config)
        names = ", ".join(camera.name for camera in config.camera)
        print(f"{options.config}: ok, {len(config.camera)} cameras: {names}")
        return 0
    if options.reload:
        return _reload(options.config)
    from pluto_edge.service.run import run as serve

    serve(options.config)
    return 0


def _reload(file: Path) -> int:
    from pluto_edge.service.config import read
    from pluto_edge.service.states import running

    folder = Path(read(file).state)
    before = running(folder)
    os.kill(before.pid, signal.SIGHUP)
    until = monotonic() + PATIENCE
    while (after := running(folder)).reloads == before.reloads:
        if monotonic() > until:
            raise ConfigError(f"process {before.pid} has not answered for {PATIENCE:.0f} s; see its log")
        sleep(0.1)
    return _told(after)


def _told(after: "Running") -> int:
    if after.refused:
        raise ConfigError(f"refused, everything stays as it was: {after.refused}")
    print(f"reloaded {after.config}")
    return 0
