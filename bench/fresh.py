"""A bundle in processes of its own: how long it takes to the first prediction, and how much memory it needs."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from pluto_edge.errors import BundleError

CODE = "from pluto_edge.bench.fresh_child import {name}; {name}()"


@dataclass(frozen=True)
class Start:
    """Milliseconds from nothing to the first prediction: all of it, and what its parts take."""

    total: float
    importing: float
    opening: float
    predicting: float


@dataclass(frozen=True)
class Memory:
    """The most bytes that were resident, without the images: once open, after predictions, after steps.

    None where the system does not say.
    """

    batch: int
    open: int | None
    predict: int | None
    step: int | None


def cold_start(bundle: Path, providers: str, threads: int | None) -> Start:
    """How long a new process takes to its first prediction, and each part of it."""
    seconds, parts = run_child(CODE.format(name="start_child"), bundle, providers, threads)
    return Start(1e3 * seconds, *parts)


def peak_memory(bundle: Path, providers: str, threads: int | None, batch: int) -> Memory:
    """How much memory a new process needs to open the bundle, to predict and to learn."""
    return Memory(batch, *run_child(CODE.format(name="memory_child"), bundle, providers, threads, batch)[1])


def run_child(code: str, bundle: Path, *arguments: object) -> tuple[float, list[Any]]:
    """Seconds from the start of a child to the line of JSON that it writes, and what is in that.

    The child keeps the byte code that it compiles, as an installed package does, also where this process must not:
    compiling anew at every start would be a third of a small bundle's.
    """
    command = [sys.executable, "-c", code, json.dumps([str(bundle), *arguments])]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    begin = perf_counter()
    with subprocess.Popen(command, env=environment, **pipes) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = perf_counter() - begin
        _, errors = process.communicate()
    if process.returncode != 0:
        last = errors.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        raise BundleError(f"{bundle}: it does not run in a process of its own ({last[0]})")
    return seconds, json.loads(line)
