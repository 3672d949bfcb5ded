"""From a bundle's folder or address to a network that runs: hashes, imports and graphs side by side."""

from pathlib import Path
from typing import TYPE_CHECKING

from pluto_edge._text import is_address
from pluto_edge.manifest import Bundle

if TYPE_CHECKING:  # what needs ONNX Runtime is imported while a bundle's weights are hashed
    from pluto_edge.runtime.engine.network import Network
    from pluto_edge.runtime.engine.providers import Providers

__all__ = ["open_network"]


def open_network(
    bundle: str | Path, providers: "Providers", threads: int | None, verify: bool, plan: str | Path | None
) -> "Network":
    """A bundle on this machine, as `Runtime` is asked for it; every hash was found to be right."""
    opened = Bundle(_folder(bundle), verify, wait=False)
    # These take about as long as the hash of the weights, which has a thread of its own.
    from pluto_edge.runtime.engine.network import Network
    from pluto_edge.runtime.engine.plan import find_plan
    from pluto_edge.runtime.engine.session import Engine

    engine = Engine.of(opened.manifest.precision, providers, threads)
    if plan is not None:
        engine.follow(find_plan(opened.hash, engine.provider, None if plan == "auto" else Path(plan)))
    network = Network(opened, engine)
    opened.wait()  # the weights' hash, which was computed while the graphs were opened
    return network


def _folder(bundle: str | Path) -> Path:
    """Where a bundle is on this device, once it was fetched if it has an address."""
    if not is_address(bundle):
        return Path(bundle)
    from pluto_edge.repository.client import resolve

    return resolve(str(bundle))
