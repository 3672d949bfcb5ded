"""How much say a specialist keeps on its own domain beside the generalist, or beside the others."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pluto_edge.errors import ConfigError
from pluto_edge.manifest import ModuleEntry
from pluto_edge.train.home import SECOND, SHARES, home_share, homes_beside_others
from pluto_edge.train.selector import SourceLogits


def probabilities(right: np.ndarray, labels: np.ndarray, classes: int = 3) -> np.ndarray:
    """`right` for the label, the rest in equal parts for the others."""
    table = np.repeat((1 - right)[:, None] / (classes - 1), classes, axis=1)
    table[np.arange(len(labels)), labels] = right
    return table


LABELS = np.arange(40) % 3
SURE, UNSURE = (probabilities(np.full(40, p), LABELS) for p in (0.9, 0.4))


def test_who_is_better_at_home_has_all_of_the_say() -> None:
    assert home_share(SURE, UNSURE, LABELS) == 1
    assert home_share(UNSURE, SURE, LABELS) == 0
    assert home_share(SURE, SURE, LABELS) == 1  # the specialist, where it is all the same


def test_two_that_know_different_things_share() -> None:
    halves = np.where(np.arange(40) < 20, 0.95, 0.05)
    own, general = probabilities(halves, LABELS), probabilities(halves[::-1], LABELS)
    assert home_share(own, general, LABELS) == 0.5


@given(st.integers(0, 2**32 - 1), st.integers(1, 30))
def test_a_second_module_must_be_worth_its_pass(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, count)
    own, general = rng.dirichlet(np.ones(4), size=(2, count))
    share = home_share(own, general, labels)
    assert share in SHARES

    def surprise(s: float) -> float:
        return float(-np.log((s * own + (1 - s) * general)[np.arange(count), labels]).mean())

    assert all(surprise(share) <= surprise(s) + SECOND + 1e-9 for s in SHARES)
    if 0 < share < 1:
        assert surprise(share) + SECOND <= min(surprise(0), surprise(1)) + 1e-9


def beside(own: int, *right: float, count: int = 40) -> SourceLogits:
    """Modules that give the label so much probability, on one domain's images."""
    labels = np.arange(count) % 3
    p = np.stack([probabilities(np.full(count, r), labels) for r in right], axis=1)
    return SourceLogits(
        torch.zeros(count, 1), torch.log(torch.from_numpy(p)), torch.from_numpy(labels), torch.full((count,), own)
    )


def test_beside_the_others_where_there_is_no_generalist() -> None:
    strong = {"a": beside(0, 0.9, 0.4, 0.5), "b": beside(1, 0.4, 0.9, 0.5)}
    assert homes_beside_others(strong, [1.0] * 3) == {"a": 1.0, "b": 1.0}
    weak = {"a": beside(0, 0.4, 0.8, 0.8), "b": beside(1, 0.8, 0.4, 0.8)}
    assert homes_beside_others(weak, [1.0] * 3) == {"a": 0.0, "b": 0.0}
    assert homes_beside_others({"a": strong["a"], "b": weak["b"]}, [1.0] * 3) == {"a": 1.0, "b": 0.0}


def test_few_images_say_what_all_domains_say() -> None:
    many = {f"{n}": beside(0, 0.4, 0.8) for n in range(8)}
    assert homes_beside_others({**many, "odd": beside(0, 0.9, 0.8, count=2)}, [1.0] * 2)["odd"] == 0.0
    assert homes_beside_others({**many, "odd": beside(0, 0.9, 0.4, count=400)}, [1.0] * 2)["odd"] == 1.0


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_is_from_0_to_1(share: float) -> None:
    with pytest.raises(ConfigError, match=r"homes\.fog: want a share from 0 to 1"):
        ModuleEntry("all", role="generalist", homes={"fog": share})
