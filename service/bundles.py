"""The bundle of a service: where it is, how it is opened, and whether it says anything of what cameras see."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pluto_edge._text import is_address
from pluto_edge.errors import BundleError
from pluto_edge.manifest import Bundle
from pluto_edge.runtime.runtime import Runtime
from pluto_edge.service.config import ServiceConfig

__all__ = ["check", "digest", "find", "open_runtime"]


def find(config: ServiceConfig) -> Path:
    """The folder of the bundle that the configuration asks for; of an address, of its newest release."""
    if not is_address(config.bundle):
        return Path(config.bundle)
    from pluto_edge.repository.client import resolve

    return resolve(config.bundle)


def open_runtime(config: ServiceConfig, folder: Path) -> Runtime:
    """The one place that opens a bundle."""
    return Runtime(folder, config.providers, config.threads)


def digest(folder: Path) -> str:
    """The hash of the bundle in a folder; no file of it but the manifest is read."""
    return Bundle(folder, verify=False).hash


def check(runtime: Runtime, frames: Iterable[NDArray[np.uint8]]) -> None:
    """Close and refuse a bundle that cannot say anything of what the cameras have just seen."""
    try:
        for frame in frames:
            runtime.predict(frame)  # raises where nothing that it says is finite
    except Exception as cause:  # of whatever kind: the cameras have a bundle that works
        runtime.close()
        raise BundleError(f"{runtime.bundle.path}: fails on what the cameras see ({cause})") from cause
