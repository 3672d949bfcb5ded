"""Bundles of both profiles predict and learn the same."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pluto_edge import AdaptConfig, Runtime
from pluto_edge.modules import Kind
from pluto_edge.tolerances import TRAJECTORY_WEIGHTS

CONFIG = replace(AdaptConfig.paper(), filter=False)


def steps(bundle: Path, frames: np.ndarray) -> list[np.ndarray]:
    with Runtime(bundle, "cpu", config=CONFIG) as runtime:
        said = [runtime.step(np.roll(frames, i, axis=0)).probabilities for i in range(3)]
        return [*said, runtime.predict(frames[:3]).probabilities, runtime.predict(frames[0]).probabilities]


@pytest.mark.parametrize("batch", [None, 1, 4, 64], ids=str)
def test_steps_are_the_same(
    make_bundle: Callable[..., Path], frames: np.ndarray, kind: Kind, batch: int | None
) -> None:
    """Eleven images fill a fixed batch of 4 twice and leave three; one of 64 they never fill."""
    want = steps(make_bundle(kind), frames)
    got = steps(make_bundle(kind, profile="portable", batch=batch), frames)
    assert np.abs(want[2] - want[0][np.arange(-2, 9)]).max() > TRAJECTORY_WEIGHTS  # something was learned
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=TRAJECTORY_WEIGHTS)


def test_what_fills_a_batch_is_not_seen(make_bundle: Callable[..., Path], frames: np.ndarray) -> None:
    with Runtime(make_bundle(profile="portable", batch=4), "cpu") as runtime:
        alone, together = runtime.predict(frames[:1]), runtime.predict(frames[:4])
    np.testing.assert_allclose(alone.probabilities, together.probabilities[:1], rtol=0, atol=TRAJECTORY_WEIGHTS)
    assert alone.probabilities.shape == (1, 7)
