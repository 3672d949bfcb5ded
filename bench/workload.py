"""What a benchmark runs: always the same images, and steps that always do all of their work."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pluto_edge.config import AdaptConfig
from pluto_edge.manifest import Bundle
from pluto_edge.runtime.runtime import Runtime


def images(bundle: Bundle, count: int) -> NDArray[np.uint8]:
    """Noise, as large as the backbone's images."""
    size = bundle.manifest.preprocessing.size
    return np.random.default_rng(0).integers(0, 256, (count, *size, 3), dtype=np.uint8)


def steady(config: AdaptConfig) -> AdaptConfig:
    """Every image is reliable, and nothing that is learned has an effect: a step costs the same each time."""
    return replace(
        config,
        filter=False,
        min_reliable=min(config.min_reliable, 1),
        ln_lr=0.0,
        selector_lr=0.0,
        guard=False,
        recovery=None,
    )


def open_runtime(
    bundle: Bundle, providers: str, threads: int | None, modules: int | None = None, top_m: int | None = None
) -> Runtime:
    """The bundle's first `modules` specialists, all of them if None, of which `top_m` are blended.

    They are blended as in the paper: noise looks like no domain, and all of them are to run.
    """
    config = steady(AdaptConfig.paper())
    runtime = Runtime(bundle.path, providers, threads, top_m, config=config, verify=False)
    kept = (bundle.manifest.specialists or bundle.manifest.names)[:modules]
    for name in bundle.manifest.names:
        if name not in kept:
            runtime.remove_module(name)
    return runtime
