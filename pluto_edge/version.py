"""The version, and how this package signs what it writes."""

import sys
from pathlib import Path

_START, _END = "pluto_edge-", ".dist-info"


def _installed() -> str:
    """From the name of the installation's folder: to import importlib.metadata costs a start ten milliseconds."""
    for folder in sys.path:
        try:
            found = next(Path(folder or ".").glob(f"{_START}*{_END}"), None)
        except OSError:
            continue
        if found is not None:
            return found.name.removeprefix(_START).removesuffix(_END)
    return "0+unknown"  # run from a checkout that was never installed


VERSION = _installed()
WRITER = f"pluto-edge {VERSION}"
