"""pluto-edge: pick, blend and adapt small domain modules of a frozen Vision Transformer, on the device.

    from pluto_edge import Runtime

    runtime = Runtime("bundle/")
    prediction = runtime.predict(frame)

Names are loaded when they are first used: importing `pluto_edge` imports neither ONNX Runtime nor torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from pluto_edge.version import VERSION as __version__

if TYPE_CHECKING:
    from pluto_edge.config import AdaptConfig
    from pluto_edge.errors import (
        BackboneError,
        BundleError,
        ConfigError,
        ImageError,
        MissingExtraError,
        NotFiniteError,
        ParityError,
        PlutoError,
        ProviderError,
        RecordingError,
        SourceError,
        StoreError,
        StreamError,
    )
    from pluto_edge.manifest import Bundle, Manifest
    from pluto_edge.preprocess import Preprocessing
    from pluto_edge.runtime.runtime import Runtime
    from pluto_edge.runtime.stream.stream import Stream
    from pluto_edge.runtime.types import Event, Prediction
    from pluto_edge.store import Store

_HOME = {
    "AdaptConfig": "config",
    "BackboneError": "errors",
    "Bundle": "manifest",
    "BundleError": "errors",
    "ConfigError": "errors",
    "Event": "runtime.types",
    "ImageError": "errors",
    "Manifest": "manifest",
    "MissingExtraError": "errors",
    "NotFiniteError": "errors",
    "ParityError": "errors",
    "PlutoError": "errors",
    "Prediction": "runtime.types",
    "Preprocessing": "preprocess",
    "ProviderError": "errors",
    "RecordingError": "errors",
    "Runtime": "runtime.runtime",
    "SourceError": "errors",
    "Store": "store",
    "StoreError": "errors",
    "Stream": "runtime.stream.stream",
    "StreamError": "errors",
}

__all__ = [
    "AdaptConfig",
    "BackboneError",
    "Bundle",
    "BundleError",
    "ConfigError",
    "Event",
    "ImageError",
    "Manifest",
    "MissingExtraError",
    "NotFiniteError",
    "ParityError",
    "PlutoError",
    "Prediction",
    "Preprocessing",
    "ProviderError",
    "RecordingError",
    "Runtime",
    "SourceError",
    "Store",
    "StoreError",
    "Stream",
    "StreamError",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'pluto_edge' has no attribute {name!r}")
    value = getattr(import_module(f"pluto_edge.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
