"""What modules said, which of it still holds, and by what that is told."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pluto_edge.manifest import Bundle
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.engine.affines import Affines
from pluto_edge.runtime.engine.modules import Modules
from pluto_edge.runtime.engine.network import Network
from pluto_edge.runtime.engine.passes import Pass, Said, hold
from pluto_edge.runtime.engine.session import Engine

NAMES = ("one", "two", "three")


def passed(*, names: tuple[str, ...] = NAMES, digests: tuple[str, ...] = ("a", "b", "c"), images: int = 2) -> Pass:
    values = np.arange(images * len(names) * 4, dtype=np.float32).reshape(images, len(names), 4)
    return Pass(NAMES, names, values, values + 100, np.zeros((images, 5), np.float32), digests)


def test_a_pass_by_module_and_by_image() -> None:
    whole = passed()
    np.testing.assert_array_equal(whole.of("two"), whole.logits[:, 1])
    some = whole.only({"three", "one"})
    assert some.names == ("one", "three") and some.digests == ("a", "c") and some.loaded == NAMES
    np.testing.assert_array_equal(some.of("three"), whole.of("three"))
    np.testing.assert_array_equal(some.columns, [0, 2])
    np.testing.assert_array_equal(some.widened(np.array([[0.4, 0.6]])), [[0.4, 0.0, 0.6]])
    last = whole.rows(np.array([1]))
    assert len(last.x_hat) == 1
    np.testing.assert_array_equal(last.features, whole.features[1:])


def test_who_is_not_finite() -> None:
    whole = passed()
    whole.logits[0, 1, 0] = np.nan
    whole.features[1, 2, 3] = np.inf
    assert whole.not_finite == ("two", "three")


def test_pieces_are_joined_with_their_activations_if_all_have_them() -> None:
    activations = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    kept, bare = (Said.of(activations[:, 0], activations, keep=keep) for keep in (True, False))
    np.testing.assert_array_equal(kept.features, activations[:, -1])
    assert bare.activations is None
    whole = Said.join([kept, kept])
    assert whole.activations is not None and whole.activations.shape == (4, 3, 4)
    assert Said.join([kept, bare]).activations is None


def test_what_holds_is_told_by_digests() -> None:
    seen = [passed(), passed(digests=("a", "b", "other"))]
    assert hold(seen, "one", "a") and not hold(seen, "one", "b")
    assert not hold(seen, "three", "c")  # not in all of them
    assert not hold([passed(names=("one",), digests=("a",))], "two", "b")
    assert not hold((), "one", "a")


def test_a_digest_is_of_every_bit() -> None:
    one = Affines(np.ones((3, 4), np.float32), np.zeros((3, 4), np.float32))
    assert one.digest == Affines(one.scale.copy(), one.bias.copy()).digest
    other = one.scale.copy()
    other[2, 3] = np.nextafter(np.float32(1), np.float32(2))
    assert Affines(other, one.bias).digest != one.digest
    assert Affines(one.bias, one.scale).digest != one.digest


@pytest.fixture
def network(make_bundle: Callable[..., Path]) -> Network:
    return Network(Bundle(make_bundle()), Engine("cpu", 1))


def test_a_network_runs_again_what_would_run_with_other_weights(network: Network, frames: np.ndarray) -> None:
    """Other affines, or a module of the same name with the same affines and another head: then nothing holds."""
    batch = ImageBatch(frames, network.bundle.manifest.preprocessing)
    ran = []
    say = network.graphs.say
    network.graphs.say = lambda *arguments, **options: ran.append(arguments[1]) or say(*arguments, **options)  # type: ignore[method-assign, func-returns-value]
    seen = [network.run(batch, {})]
    name, module = next(iter(network.modules.items()))
    ran.clear()
    copied = Affines(module.exported.scale.copy(), module.exported.bias.copy())
    network.run(batch, {name: copied}, seen=seen)
    assert not ran  # the same in every bit, though not the same object
    network.run(batch, {name: copied.times(1.1)}, seen=seen)
    assert set(map(id, ran)) == {id(module)}
    ran.clear()
    other = replace(module, digest="another head's")
    network.modules = Modules({**network.modules, name: other})
    network.run(batch, {}, seen=seen)
    assert set(map(id, ran)) == {id(other)}


def test_a_network_that_recalls_is_asked_first(network: Network, frames: np.ndarray) -> None:
    batch = ImageBatch(frames, network.bundle.manifest.preprocessing)
    known = network.run(batch, {})
    full = network.run(batch, {}, activations=True)
    network.graphs.say = lambda *arguments, **options: pytest.fail("it was computed again")  # type: ignore[method-assign]
    network.recall = lambda batch: known  # type: ignore[method-assign]
    np.testing.assert_array_equal(network.run(batch, {}).logits, known.logits)
    assert network.look(batch).tokens is None
    np.testing.assert_array_equal(network.look(batch).x_hat, known.x_hat)
    again = network.run(batch, {}, seen=[full], activations=True)  # the caller has what is not kept
    assert again.activations is not None and full.activations is not None
    np.testing.assert_array_equal(again.activations, full.activations)
