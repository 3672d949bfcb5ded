"""pluto-edge: pick, blend and adapt small domain modules of a frozen Vision Transformer, on the device.

    from pluto_edge import Runtime

    runtime = Runtime("bundle/")
    prediction = runtime.predict(frame)

On a workstation `train`, `export` and `evaluate` do what the commands of these names do:

    from pluto_edge import evaluate, export, train

    train("photos/", "store/", backbone="vit_small_patch16_224", pretrained="augreg_in21k")
    export("store/", "bundle/")
    print(evaluate("bundle/", "photos/").verdict)

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
        RepositoryError,
        SourceError,
        StoreError,
        StreamError,
    )
    from pluto_edge.evaluate.api import evaluate as evaluate
    from pluto_edge.export.exporter import run_export as export
    from pluto_edge.manifest import Bundle, Manifest
    from pluto_edge.observe.recording import Recorder
    from pluto_edge.observe.sources import Frame, open_source
    from pluto_edge.observe.view import View
    from pluto_edge.preprocess import Preprocessing
    from pluto_edge.runtime.runtime import Runtime
    from pluto_edge.runtime.stream.stream import Stream
    from pluto_edge.runtime.types import Event, Prediction
    from pluto_edge.store import Store
    from pluto_edge.train.api import train as train

_PACKAGES = ("evaluate", "export", "train")  # each can be called (pluto_edge/_callable.py)

_HOME = {
    "AdaptConfig": "config",
    "BackboneError": "errors",
    "Bundle": "manifest",
    "BundleError": "errors",
    "ConfigError": "errors",
    "Event": "runtime.types",
    "Frame": "observe.sources",
    "ImageError": "errors",
    "Manifest": "manifest",
    "MissingExtraError": "errors",
    "NotFiniteError": "errors",
    "ParityError": "errors",
    "PlutoError": "errors",
    "Prediction": "runtime.types",
    "Preprocessing": "preprocess",
    "ProviderError": "errors",
    "Recorder": "observe.recording",
    "RecordingError": "errors",
    "RepositoryError": "errors",
    "Runtime": "runtime.runtime",
    "SourceError": "errors",
    "Store": "store",
    "StoreError": "errors",
    "Stream": "runtime.stream.stream",
    "StreamError": "errors",
    "View": "observe.view",
    "open_source": "observe.sources",
}

__all__ = [
    "AdaptConfig",
    "BackboneError",
    "Bundle",
    "BundleError",
    "ConfigError",
    "Event",
    "Frame",
    "ImageError",
    "Manifest",
    "MissingExtraError",
    "NotFiniteError",
    "ParityError",
    "PlutoError",
    "Prediction",
    "Preprocessing",
    "ProviderError",
    "Recorder",
    "RecordingError",
    "RepositoryError",
    "Runtime",
    "SourceError",
    "Store",
    "StoreError",
    "Stream",
    "StreamError",
    "View",
    "__version__",
    "evaluate",
    "export",
    "open_source",
    "train",
]


def __getattr__(name: str) -> object:
    if name in _PACKAGES:
        return import_module(f"pluto_edge.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'pluto_edge' has no attribute {name!r}")
    value = getattr(import_module(f"pluto_edge.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
