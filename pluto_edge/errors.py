"""Everything that pluto-edge raises on purpose.

PlutoError
├── ConfigError         an argument or option has a value that makes no sense
├── StoreError          a module store is missing, malformed or inconsistent
├── BundleError         a bundle is missing, damaged, too new, not what its manifest says, or fails when it runs
├── BackboneError       a Vision Transformer that the exporter does not compile, or cannot load
├── ParityError         an exported graph disagrees with torch
├── ProviderError       ONNX Runtime does not run where it was asked to
├── ImageError          images that cannot be turned into a batch
├── NotFiniteError      no module says anything but NaN or infinity of these images
├── StreamError         a stream's learning failed, or the stream is closed
├── SourceError         a camera, a video or an address that gives no frames, or no more of them
├── RecordingError      a recording of a stream that cannot be written or read
├── RepositoryError     a repository, or what it publishes, cannot be read, trusted or changed
└── MissingExtraError   an optional dependency is not installed

Catch `PlutoError` to catch them all. A message says what was wrong, where, and what to do.
"""

__all__ = [
    "BackboneError",
    "BundleError",
    "ConfigError",
    "ImageError",
    "MissingExtraError",
    "NotFiniteError",
    "ParityError",
    "PlutoError",
    "ProviderError",
    "RecordingError",
    "RepositoryError",
    "SourceError",
    "StoreError",
    "StreamError",
]


class PlutoError(Exception):
    """Base of every error that pluto-edge raises on purpose."""


class ConfigError(PlutoError, ValueError):
    """An argument or option has a value that makes no sense."""


class StoreError(PlutoError):
    """A module store is missing, malformed or inconsistent."""


class BundleError(PlutoError):
    """A bundle is missing, damaged, too new, not what its manifest says, or fails when it runs."""


class BackboneError(PlutoError):
    """A Vision Transformer that the exporter does not compile, or cannot load."""


class ParityError(PlutoError):
    """An exported graph disagrees with torch; `entries` has every comparison that was made."""

    def __init__(self, message: str, entries: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.entries = entries


class ProviderError(PlutoError):
    """ONNX Runtime does not run where it was asked to."""


class ImageError(PlutoError, ValueError):
    """Images that cannot be turned into a batch."""


class NotFiniteError(PlutoError, ArithmeticError):
    """No module says anything but NaN or infinity of these images."""


class StreamError(PlutoError):
    """A stream's learning failed (`__cause__` says how), or the stream is closed."""


class SourceError(PlutoError):
    """A camera, a video or an address that gives no frames, or no more of them."""


class RecordingError(PlutoError):
    """A recording of a stream that cannot be written or read."""


class RepositoryError(PlutoError):
    """A repository, or what it publishes, cannot be read, trusted or changed."""


class MissingExtraError(PlutoError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, other: str = "") -> None:
        """`other` is an extra that has it, too."""
        choice = f' (or "pluto-edge[{other}]")' if other else ""
        super().__init__(f'{package} is not installed; run: pip install "pluto-edge[{extra}]"{choice}')
