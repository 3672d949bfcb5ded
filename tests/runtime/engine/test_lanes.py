"""Pieces of a batch that are differentiated at the same time."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pluto_edge.manifest import Bundle
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.engine.graphs import Graphs
from pluto_edge.runtime.engine.lanes import Lanes
from pluto_edge.runtime.engine.network import Network
from pluto_edge.runtime.engine.objective import MEAN_ENTROPY, Objective
from pluto_edge.runtime.engine.plan import DEFAULT
from pluto_edge.runtime.engine.session import Engine
from pluto_edge.tolerances import GRADIENT, LOGITS_FP32, relative_error

NAME = "domain-0"


@given(st.integers(1, 64), st.integers(1, 64), st.none() | st.integers(1, 64))
def test_no_more_is_under_way_than_may_be(threads: int, images: int, most: int | None) -> None:
    """Neither images nor threads; and every lane has some of both."""
    lanes = Lanes.of(threads, images, most)
    assert lanes.count <= (most or lanes.count)
    assert lanes.images >= 1 and lanes.count * lanes.images <= images
    assert lanes.threads >= 1 and lanes.count + lanes.threads - 1 == threads


@given(st.integers(1, 5), st.lists(st.integers(), max_size=20))
def test_results_come_in_the_order_of_the_items(count: int, items: list[int]) -> None:
    assert list(Lanes(count, 1, 1).map(lambda item: item + 1, items)) == [item + 1 for item in items]


def test_items_are_made_when_they_are_needed() -> None:
    """One for each lane and one more, however many there are: memory does not grow with the batch."""
    made: list[int] = []
    done = 0

    def items() -> Iterator[int]:
        for number in range(20):
            made.append(number)
            assert len(made) - done <= 2 + 2  # those of two lanes, the next, and the one that waits for it
            yield number

    for number in Lanes(2, 1, 1).map(lambda item: item, items()):
        assert number == done
        done += 1
    assert done == 20


def test_as_many_are_under_way_as_there_are_lanes() -> None:
    together = threading.Barrier(3, timeout=30)
    assert list(Lanes(3, 1, 1).map(lambda item: together.wait() >= 0, range(6))) == [True] * 6


def test_what_a_lane_raises_is_raised() -> None:
    def fail(item: int) -> int:
        if item == 2:
            raise KeyError(item)
        return item

    with pytest.raises(KeyError):
        list(Lanes(2, 1, 1).map(fail, range(9)))


@pytest.fixture
def opened(make_bundle: Callable[..., Path], frames: np.ndarray) -> tuple[Network, ImageBatch]:
    network = Network(Bundle(make_bundle()), Engine("cpu", 4))
    return network, ImageBatch(frames, network.bundle.manifest.preprocessing)


@pytest.mark.parametrize("count", [1, 3, 4, 11])
def test_the_gradient_is_that_of_one_piece(opened: tuple[Network, ImageBatch], count: int) -> None:
    network, batch = opened
    samples = np.arange(len(batch))[::-1][:count]
    module = network.modules[NAME]
    objective = Objective(10.0)

    def gradient(lanes: int | None) -> object:
        network.engine.plan = replace(DEFAULT, lanes=lanes)
        return network.graphs.gradient(batch, module, module.exported, objective, samples)

    want, got = gradient(1), gradient(None)
    np.testing.assert_array_equal(got.reliable, want.reliable)
    assert relative_error(got.logits, want.logits) < LOGITS_FP32
    assert relative_error(got.d_affines.scale, want.d_affines.scale) < GRADIENT
    assert relative_error(got.d_affines.bias, want.d_affines.bias) < GRADIENT


def test_the_same_batch_has_the_same_gradient_to_the_bit(opened: tuple[Network, ImageBatch]) -> None:
    """Whichever lane was faster: sums are taken in the order of the images."""
    network, batch = opened
    module = network.modules[NAME]
    found = [network.graphs.gradient(batch, module, module.exported, MEAN_ENTROPY) for _ in range(5)]
    for other in found[1:]:
        np.testing.assert_array_equal(other.d_affines.scale, found[0].d_affines.scale)
        np.testing.assert_array_equal(other.logits, found[0].logits)


def test_lanes_by_threads_and_images(make_bundle: Callable[..., Path]) -> None:
    """Fewer images than lanes have all threads; a graph of a fixed batch has no lanes."""
    bundle = Bundle(make_bundle())
    graphs = Graphs(bundle, Engine("cpu", 4))
    graphs.micro_batch_adapt = 10
    assert graphs.lanes(11) == graphs.lanes(4) == Lanes(4, 2, 1)
    assert graphs.lanes(3) == Lanes(1, 2, 4)
    graphs.micro_batch_adapt = 2
    assert graphs.lanes(11) == Lanes(2, 1, 3)
    fixed = Graphs(Bundle(make_bundle(profile="portable", batch=2)), Engine("cpu", 4))
    assert fixed.lanes(11) == Lanes(1, 2, 4)
