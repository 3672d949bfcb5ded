"""The bundle of a service: where it is opened, whether there is another one now, and whether that is any good."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pluto_edge.errors import BundleError
from pluto_edge.manifest import Bundle
from pluto_edge.runtime.runtime import Runtime
from pluto_edge.service.config import ServiceConfig

__all__ = ["check", "is_current", "open_runtime"]


def open_runtime(config: ServiceConfig) -> Runtime:
    """The one place that opens a bundle, be it a folder or an address, which `Runtime` finds by itself."""
    return Runtime(config.bundle, config.providers, config.threads)


def is_current(config: ServiceConfig, runtime: Runtime) -> bool:
    """Whether the folder still holds what this runtime has opened; of an address that is not known beforehand."""
    if "://" in config.bundle or Path(config.bundle) != runtime.bundle.path:
        return False
    return Bundle(config.bundle, verify=False).hash == runtime.bundle.hash


def check(runtime: Runtime, frames: Iterable[NDArray[np.uint8]]) -> None:
    """Close and refuse a bundle that cannot say anything of what the cameras have just seen."""
    try:
        for frame in frames:
            runtime.predict(frame)  # raises where nothing that it says is finite
    except Exception as cause:  # of whatever kind: the cameras have a bundle that works
        runtime.close()
        raise BundleError(f"{runtime.bundle.path}: fails on what the cameras see ({cause})") from cause
