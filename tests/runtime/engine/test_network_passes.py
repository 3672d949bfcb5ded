"""Which modules a network runs, how often, with which affines; and modules that come and go."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pluto_edge.errors import ConfigError, NotFiniteError, StoreError
from pluto_edge.manifest import Bundle
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.engine.affines import Affines
from pluto_edge.runtime.engine.network import Network
from pluto_edge.runtime.engine.session import Engine, Graph
from pluto_edge.store import Store
from pluto_edge.tolerances import GRADIENT, LOGITS_FP32, relative_error

FORWARD_INPUT, ADAPT_INPUT = "head_weight", "threshold"  # the second is in the gradient graph alone


@pytest.fixture
def network(make_bundle: Callable[..., Path]) -> Network:
    return Network(Bundle(make_bundle()), Engine("cpu", 1))


@pytest.fixture
def batch(network: Network, frames: np.ndarray) -> ImageBatch:
    return ImageBatch(frames, network.bundle.manifest.preprocessing)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was run since, in order: embed, forward or adapt."""
    found: list[str] = []
    original = Graph.__call__

    def call(graph: Graph, inputs: dict) -> dict:
        adapt, forward = ADAPT_INPUT in graph.inputs, FORWARD_INPUT in graph.inputs
        found.append("adapt" if adapt else "forward" if forward else "embed")
        return original(graph, inputs)

    monkeypatch.setattr(Graph, "__call__", call)
    return found


def moved(network: Network, name: str, by: float = 0.1) -> Affines:
    """The module's affines, a little off."""
    exported = network.modules[name].exported
    return Affines(exported.scale + np.float32(by), exported.bias - np.float32(by))


def module_folder(store: Store, target: Path, name: str, **changes: object) -> Path:
    """A module of the store under another name, with other words in its description."""
    shutil.copytree(store.path / "modules/domain-0", target / name)
    file = target / name / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "name": name, **changes}))
    return target / name


# who runs


def test_modules_are_in_the_order_of_the_bundle(network: Network, batch: ImageBatch) -> None:
    """Whatever the order in which they are asked for, and each says what it says among all."""
    everyone = network.run(batch, {})
    assert everyone.names == everyone.loaded == ("domain-0", "domain-1", "domain-2")
    some = network.run(batch, {}, ["domain-2", "domain-0"])
    assert some.names == ("domain-0", "domain-2") and some.loaded == everyone.loaded
    for name in some.names:
        np.testing.assert_array_equal(some.of(name), everyone.of(name))


def test_each_image_is_embedded_once(network: Network, batch: ImageBatch, ran: list[str]) -> None:
    network.run(batch, {})
    assert ran.count("embed") * 3 == ran.count("forward") and "adapt" not in ran
    del ran[:]
    network.graphs.micro_batch = 4
    network.run(batch, {}, ["domain-1"])
    assert ran == ["embed", "forward"] * 3  # eleven images


def test_affines_are_those_of_one_module(network: Network, batch: ImageBatch) -> None:
    other = moved(network, "domain-1")
    plain, passed = network.run(batch, {}), network.run(batch, {"domain-1": other})
    assert passed.digests[0] == plain.digests[0] and passed.digests[1] != plain.digests[1]
    for name in ("domain-0", "domain-2"):
        np.testing.assert_array_equal(passed.of(name), plain.of(name))
    assert relative_error(passed.of("domain-1"), plain.of("domain-1")) > 100 * LOGITS_FP32


def test_what_was_seen_is_not_run_again(network: Network, batch: ImageBatch, ran: list[str]) -> None:
    """Unless the module's affines are others by now."""
    first = network.run(batch, {}, ["domain-0", "domain-1"])
    del ran[:]
    again = network.run(batch, {}, ["domain-0", "domain-1"], seen=[first])
    assert ran == []
    np.testing.assert_array_equal(again.logits, first.logits)
    np.testing.assert_array_equal(again.x_hat, first.x_hat)
    changed = network.run(batch, {"domain-1": moved(network, "domain-1")}, seen=[first])
    assert ran.count("forward") == 2 * ran.count("embed")  # domain-1 and domain-2, which nobody had asked for
    np.testing.assert_array_equal(changed.of("domain-0"), first.of("domain-0"))
    assert relative_error(changed.of("domain-1"), first.of("domain-1")) > 100 * LOGITS_FP32


def test_passes_of_frames_are_one_pass_of_a_batch(network: Network, batch: ImageBatch, frames: np.ndarray) -> None:
    recipe = network.bundle.manifest.preprocessing
    singles = [network.run(ImageBatch(frame[None], recipe), {}) for frame in frames]
    together = network.run(batch, {}, seen=singles)
    whole = network.run(batch, {})
    assert together.names == whole.names
    for found, want in ((together.logits, whole.logits), (together.x_hat, whole.x_hat)):
        assert found.shape == want.shape and relative_error(found, want) < LOGITS_FP32


# how images look


def test_a_look_spares_embedding_where_images_are_few(
    network: Network, batch: ImageBatch, frames: np.ndarray, ran: list[str]
) -> None:
    look = network.look(batch)
    assert ran == ["embed"] and look.tokens is not None
    passed = network.run(batch, {}, look=look)
    assert ran.count("embed") == 1
    np.testing.assert_array_equal(passed.x_hat, look.x_hat)
    np.testing.assert_array_equal(passed.logits, network.run(batch, {}).logits)


def test_a_look_at_many_images_keeps_no_tokens(network: Network, batch: ImageBatch) -> None:
    want = network.look(batch).x_hat
    network.graphs.micro_batch = 4
    look = network.look(batch)
    assert look.tokens is None and relative_error(look.x_hat, want) < LOGITS_FP32
    assert relative_error(network.run(batch, {}, look=look).logits, network.run(batch, {}).logits) < LOGITS_FP32


# what is not finite


def broken_affines(network: Network, *names: str) -> dict[str, Affines]:
    nan = np.full(network.bundle.manifest.dims.ln_shape, np.nan, np.float32)
    return {name: Affines(nan, nan) for name in names}


def test_who_says_nan_is_left_out(network: Network, batch: ImageBatch) -> None:
    affines = broken_affines(network, "domain-1")
    passed = network.run_finite(batch, affines, list(network.modules))
    assert passed.names == ("domain-0", "domain-2") and passed.left_out == ("domain-1",)
    assert np.isfinite(passed.logits).all()


def test_where_nobody_asked_is_finite_the_others_are(network: Network, batch: ImageBatch) -> None:
    affines = broken_affines(network, "domain-1")
    passed = network.run_finite(batch, affines, ["domain-1"])
    assert passed.names == ("domain-0", "domain-2") and passed.left_out == ("domain-1",)
    everyone = broken_affines(network, *network.modules)
    with pytest.raises(NotFiniteError, match=r"no module says anything finite .*domain-0.*domain-2"):
        network.run_finite(batch, everyone, ["domain-1"])


# gradients


def test_the_gradient_graph_is_opened_when_it_is_needed(
    make_bundle: Callable[..., Path], frames: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, also for snapshots: a device that only predicts never pays for it."""
    opened: list[str] = []
    original = Engine.open
    monkeypatch.setattr(
        Engine, "open", lambda self, path, *more: opened.append(path.name) or original(self, path, *more)
    )
    network = Network(Bundle(make_bundle()), Engine("cpu", 1))
    batch = ImageBatch(frames, network.bundle.manifest.preprocessing)
    network.run(batch, {})
    assert sorted(opened) == ["embed.onnx", "forward.onnx"]
    copy = network.snapshot()
    copy.run(batch, {}, differentiate="domain-0")
    network.gradient(batch, np.arange(3), "domain-0", network.modules["domain-0"].exported)
    assert sorted(opened) == ["adapt.onnx", "embed.onnx", "forward.onnx"]


def test_a_gradient_of_some_samples(network: Network, batch: ImageBatch, frames: np.ndarray) -> None:
    """In any order, it is that of a batch of these alone."""
    samples, exported = np.array([7, 2, 9]), network.modules["domain-1"].exported
    alone = ImageBatch(frames[samples], network.bundle.manifest.preprocessing)
    found = network.gradient(batch, samples, "domain-1", exported)
    want = network.gradient(alone, np.arange(3), "domain-1", exported)
    assert relative_error(found.logits, want.logits) < LOGITS_FP32
    assert relative_error(found.d_affines.scale, want.d_affines.scale) < GRADIENT
    assert relative_error(found.d_affines.bias, want.d_affines.bias) < GRADIENT
    assert found.loss == pytest.approx(want.loss, rel=GRADIENT)


def test_a_module_that_is_differentiated_runs_once(network: Network, batch: ImageBatch, ran: list[str]) -> None:
    """Its logits come with the gradient; those of the others are what they are without."""
    passed = network.run(batch, {}, differentiate="domain-1")
    assert sorted(ran) == ["adapt", "embed", "embed", "forward", "forward"]
    assert passed.gradient is not None
    np.testing.assert_array_equal(passed.gradient.logits, passed.of("domain-1"))
    assert relative_error(passed.logits, network.run(batch, {}).logits) < LOGITS_FP32


# modules that come and go


def test_a_module_that_comes_is_run(
    network: Network, batch: ImageBatch, make_store: Callable[..., Store], tmp_path: Path
) -> None:
    """It has the backbone's affines where it brings none, and the name that its description gives."""
    assert network.add(module_folder(make_store(), tmp_path, "late")) == "late"
    assert list(network.modules) == ["domain-0", "domain-1", "domain-2", "late"]
    passed = network.run(batch, {})
    np.testing.assert_array_equal(passed.of("late"), passed.of("domain-0"))
    assert (
        network.modules.digests["late"]
        == network.modules.digests["domain-0"]
        != network.modules.digests["domain-1"]
    )
    network.remove("domain-0")
    assert network.run(batch, {}).names == ("domain-1", "domain-2", "late")


def test_a_snapshot_keeps_its_modules(
    network: Network, batch: ImageBatch, make_store: Callable[..., Store], tmp_path: Path
) -> None:
    snapshot = network.snapshot()
    network.add(module_folder(make_store(), tmp_path, "late"))
    network.remove("domain-1")
    assert snapshot.run(batch, {}).names == ("domain-0", "domain-1", "domain-2")
    assert network.run(batch, {}).names == ("domain-0", "domain-2", "late")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "vit_small_patch16_224"}, "made for vit_small_patch16_224, the bundle's is vit_tiny"),
        ({"classes": list("abcdefg")}, "or classes differ"),
        ({"size": 5}, "the bundle holds"),
    ],
)
def test_modules_of_other_bundles_are_refused(
    network: Network, make_store: Callable[..., Store], tmp_path: Path, changes: dict, message: str
) -> None:
    before = network.modules
    with pytest.raises(StoreError, match=message):
        network.add(module_folder(make_store(), tmp_path, "late", **changes))
    assert network.modules is before


def test_names_are_taken_once_and_somebody_stays(network: Network, make_store: Callable[..., Store]) -> None:
    with pytest.raises(StoreError, match="there is a module 'domain-0' already"):
        network.add(make_store().path / "modules/domain-0")
    with pytest.raises(ConfigError, match="no module 'nobody'; there are: domain-0, domain-1, domain-2"):
        network.remove("nobody")
    network.remove("domain-0")
    network.remove("domain-1")
    with pytest.raises(ConfigError, match="'domain-2' is the last module"):
        network.remove("domain-2")


def test_a_generalist_is_no_specialist_unless_it_is_alone(
    network: Network, make_store: Callable[..., Store], tmp_path: Path
) -> None:
    assert network.modules.generalist is None and len(network.modules.specialists) == 3
    folder = module_folder(
        make_store(), tmp_path, "all", role="generalist", domains=["domain-1"], homes={"domain-1": 0.5}
    )
    network.add(folder)
    assert network.modules.generalist == "all" and network.modules.homes == {"domain-1": 0.5}
    assert network.modules.specialists == ("domain-0", "domain-1", "domain-2")
    for name in network.modules.specialists:
        network.remove(name)
    assert network.modules.specialists == ("all",)
