"""The version, and how this package signs what it writes."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("pluto-edge")
except PackageNotFoundError:  # run from a checkout that was never installed
    VERSION = "0+unknown"

WRITER = f"pluto-edge {VERSION}"
