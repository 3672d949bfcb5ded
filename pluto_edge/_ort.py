"""The one import of ONNX Runtime.

Releases from 1.29 on send telemetry on Linux unless this variable is set before the import. A device that
runs pluto-edge sends nothing unless its owner asked for it (by setting the variable to 0).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import cache
from io import StringIO

from pluto_edge.errors import MissingExtraError

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

try:
    import onnxruntime
except ImportError as cause:
    raise MissingExtraError("onnxruntime", "cpu", "gpu") from cause

_ERRORS, _NOTHING = 3, 4  # severities: its warnings speak of graph internals
onnxruntime.set_default_logger_severity(_ERRORS)


@cache
def preload_cuda() -> None:
    """Loads CUDA and cuDNN from where pip puts them, for a build of ONNX Runtime that uses them.

    The system's loader does not look there by itself. Called before CUDA is tried, not on import: the libraries
    take 230 MB of memory, which a process that stays on the CPU has no use for.
    """
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        with redirect_stdout(
            StringIO()
        ):  # it prints what it does not find; `runtime/engine/cuda.py` says it better
            onnxruntime.preload_dlls()


@contextmanager
def silent() -> Iterator[None]:
    """No log at all, for a session that is only tried: that it fails is an answer, not an error."""
    onnxruntime.set_default_logger_severity(_NOTHING)
    try:
        yield
    finally:
        onnxruntime.set_default_logger_severity(_ERRORS)


__all__ = ["onnxruntime", "preload_cuda", "silent"]
