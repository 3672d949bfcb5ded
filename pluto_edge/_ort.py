"""The one import of ONNX Runtime.

Releases from 1.29 on send telemetry on Linux unless this variable is set before the import. A device that
runs pluto-edge sends nothing unless its owner asked for it (by setting the variable to 0).
"""

import os

from pluto_edge.errors import MissingExtraError

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

try:
    import onnxruntime
except ImportError as cause:
    raise MissingExtraError("onnxruntime", "cpu", "gpu") from cause

onnxruntime.set_default_logger_severity(3)  # its warnings speak of graph internals; errors still show

__all__ = ["onnxruntime"]
