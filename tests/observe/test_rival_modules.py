"""Who else could have been shipped: every answer is what its own way of running gives."""

from pathlib import Path

import numpy as np
import pytest

from pluto_edge import AdaptConfig, Runtime
from pluto_edge.observe.rivals import Rivals
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.engine.session import Graph

DIGITS = Path(__file__).parents[2] / "examples/digits/bundle"  # has a generalist and signatures


@pytest.mark.parametrize("config", [None, AdaptConfig.paper(), AdaptConfig(weighting="generalist")])
def test_rivals_are_what_runtimes_and_modules_say(config: AdaptConfig | None) -> None:
    images = np.random.default_rng(1).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    with Runtime(DIGITS, threads=1, config=config) as runtime, Runtime(DIGITS, threads=1, config=config) as fresh:
        stream = runtime.stream(batch=16, background=False)
        rivals = Rivals(stream.learner)
        for image in images:  # two steps are learned meanwhile
            stream(image)
            state = stream.learner.state
            said = rivals(image)
            assert stream.learner.state is state
            assert said.plain == fresh.predict(image).labels[0]
            batch = ImageBatch(image, runtime.manifest.preprocessing)
            alone = {n: stream.learner.network.run(batch, {}, [n]).logits[0, 0] for n in runtime.modules}
            assert said.alone == {n: int(v.argmax()) for n, v in alone.items()}
            specialists = [v for n, v in alone.items() if n != "generalist"]
            assert said.average == np.mean(specialists, axis=0).argmax()
        assert stream.metrics.steps == 2 and stream.learner.state.steps > 0


def test_every_module_runs_once_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    image = np.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    with Runtime(DIGITS, threads=1) as runtime:
        rivals = Rivals(runtime.stream(background=False).learner)
        calls, original = [], Graph.__call__
        monkeypatch.setattr(Graph, "__call__", lambda graph, inputs: calls.append(graph) or original(graph, inputs))
        rivals(image)
        assert sum("head_weight" in graph.inputs for graph in calls) == len(runtime.modules) == 7
