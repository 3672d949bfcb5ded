"""OpenVINO against the CPU: the same predictions, and the same steps.

Needs onnxruntime-ep-openvino beside onnxruntime (on Intel's processors), or onnxruntime-openvino in an environment
of its own (`pip install "pluto-edge[openvino]"`). docs/platforms.md has what was run.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pluto_edge import AdaptConfig, Runtime
from pluto_edge.errors import BundleError
from pluto_edge.runtime.engine.providers import CPU, OPENVINO, loads
from pluto_edge.tolerances import PROBABILITIES_BF16, TRAJECTORY_WEIGHTS

BFLOAT16 = (OPENVINO, {"precision": "BF16"})
pytestmark = pytest.mark.skipif(bool(loads(OPENVINO)), reason=f"OpenVINO is not here: {loads(OPENVINO)}")

STEPS = 10
PLACES = {
    "everywhere": "openvino",
    "predictions only": {"embed": "openvino", "forward": "openvino", "adapt": "cpu"},
}


def ten_steps(bundle: Path, providers: object, config: AdaptConfig) -> list[np.ndarray]:
    """What is predicted on the way, and after it."""
    frames = np.random.default_rng(0).integers(0, 256, (STEPS + 1, 11, 44, 36, 3), np.uint8)
    with Runtime(bundle, providers, config=config) as runtime:  # type: ignore[arg-type]
        said = [runtime.step(batch).probabilities for batch in frames[:STEPS]]
        assert [event.kind for event in runtime.events] == ["step"] * STEPS
        return [*said, runtime.predict(frames[STEPS]).probabilities]


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("batch", [None, 4])
def test_ten_steps_are_those_of_the_cpu(make_bundle: Callable[..., Path], where: str, batch: int | None) -> None:
    bundle = make_bundle(profile="portable", batch=batch)
    config = replace(AdaptConfig.paper(), filter=False, guard=False)
    for got, want in zip(ten_steps(bundle, PLACES[where], config), ten_steps(bundle, "cpu", config), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=TRAJECTORY_WEIGHTS)


@pytest.mark.skipif(bool(loads(BFLOAT16)), reason=f"no bfloat16 here: {loads(BFLOAT16)}")
def test_ten_steps_in_bfloat16_are_near_those_of_the_cpu(make_bundle: Callable[..., Path]) -> None:
    bundle = make_bundle(profile="portable")
    config = replace(AdaptConfig.paper(), filter=False, guard=False)
    want = ten_steps(bundle, "cpu", config)
    off = [np.abs(a - b).max() for a, b in zip(ten_steps(bundle, "openvino-bf16", config), want, strict=True)]
    assert TRAJECTORY_WEIGHTS < max(off) <= PROBABILITIES_BF16  # rounded, and no more than that


def test_whole_graphs_run_there(make_bundle: Callable[..., Path]) -> None:
    with Runtime(make_bundle(profile="portable"), "openvino") as runtime:
        graphs = runtime._network.graphs
        for graph in (graphs.embed, graphs.forward, graphs.adapt(graphs.lanes(4))):
            assert graph.operators[OPENVINO] > 5 and graph.operators[CPU] == 0


def test_another_profile_says_which_it_should_be(make_bundle: Callable[..., Path], frames: np.ndarray) -> None:
    config = replace(AdaptConfig.paper(), filter=False, guard=False)
    with (
        Runtime(make_bundle(), "openvino", config=config) as runtime,
        pytest.raises(BundleError, match=r"adapt\.onnx: .* wants a bundle of pluto export --profile portable"),
    ):
        runtime.step(frames)
