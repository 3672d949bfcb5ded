"""What was learned goes along as far as bundles are the same, and is never used where they are not."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pluto_edge import Runtime
from pluto_edge.errors import BundleError
from pluto_edge.fleet.state import MAX_ASIDE, aside, carry, same_backbone
from pluto_edge.runtime import persistence
from tests.digits import device, draw

Make = Callable[..., Path]


def learned(path: Path) -> Runtime:
    """A runtime that has adapted with two modules, and saved that."""
    runtime = device()
    runtime.step(draw("frost", 32)[0])
    runtime.step(draw("low_light", 32)[0])
    runtime.save(path)
    return runtime


def nudge(tensors: dict[str, np.ndarray]) -> None:
    tensors["head_bias"] += np.float32(0.25)


def test_the_same_modules_go_along(make_other: Make, tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    with learned(path) as old, Runtime(make_other(clear=nudge), threads=1) as new:
        before = path.read_bytes()
        with pytest.raises(BundleError, match="another bundle"):
            new.restore(path)
        done = carry(path, old, new)
        assert done.left == () and set(done.modules) == set(old.learner.state.digests)
        assert done.kept is not None and done.kept.read_bytes() == before
        new.restore(path)
        for name, affines in old.learner.state.affines.items():
            assert new.learner.state.affines[name].digest == affines.digest
        assert carry(path, old, new).reason == "it is the new bundle's already"
        assert not old.events[-1].reason.startswith("carry")
        back = carry(path, new, old)  # the rollout was taken back
        assert "its own state is back" in back.reason and path.read_bytes() == before
        old.restore(path)


def test_a_module_that_is_another_starts_anew(make_other: Make, tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    with learned(path) as old, Runtime(make_other(generalist=nudge), threads=1) as new:
        assert "generalist" in old.learner.state.digests
        done = carry(path, old, new)
        assert done.left == ("generalist",) and "generalist" not in done.modules
        new.restore(path)
        state = new.learner.state
        assert "generalist" not in {*state.affines, *state.prototypes.modules, *state.digests}


def test_another_backbone_sets_it_aside(make_bundle: Make, tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    with learned(path) as old, Runtime(make_bundle(), threads=1) as new:
        old.save(path)  # two generations
        assert not same_backbone(old.manifest, new.manifest)
        before = path.read_bytes()
        done = carry(path, old, new)
        assert done.modules == () and "another backbone" in done.reason
        assert done.kept == aside(path, old.bundle.hash) and done.kept.read_bytes() == before
        assert not persistence.saved(path) and persistence.owner(done.kept) == old.bundle.hash
        assert carry(path, old, new).reason == "nothing was saved"


def test_what_nobody_knows_is_set_aside(make_other: Make, tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    with learned(path) as old, Runtime(make_other(), threads=1) as new:
        done = carry(path, new, device())  # `old` is no owner of it, and the new one is: nothing to do
        assert done.reason == "it is the new bundle's already"
        persistence.save(path, old.learner.state, "0" * 64)
        path.with_name(path.name + ".previous").unlink()
        assert "a bundle that is not known here" in carry(path, old, new).reason
        path.write_bytes(b"damaged")
        assert "no generation of it is whole" in carry(path, old, new).reason
        assert (tmp_path / "state.safetensors.damaged").read_bytes() == b"damaged"


def test_the_newest_that_were_set_aside_are_kept(make_other: Make, tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    neighbours = [tmp_path / name for name in ("state.safetensors.mine", f"other.safetensors.{'0' * 12}")]
    for neighbour in neighbours:
        neighbour.write_bytes(b"of somebody else")
    with learned(path) as old, Runtime(make_other(), threads=1) as new:
        kept = []
        for day in range(MAX_ASIDE + 2):
            for _ in range(2):  # two generations
                persistence.save(path, old.learner.state, f"{day:064x}"[::-1])
            for file in persistence.generations(path):
                os.utime(file, (day, day))
            done = carry(path, old, new)
            assert done.kept is not None and done.kept.is_file()
            kept.append(done.kept)
        newest = {file for state in kept[-MAX_ASIDE:] for file in persistence.generations(state)}
        assert set(tmp_path.glob("state.safetensors*")) == newest | {neighbours[0]}
        assert all(neighbour.is_file() for neighbour in neighbours)
        persistence.save(path, old.learner.state, "f" * 64)
        os.utime(path, (0, 0))  # the clock was wrong
        done = carry(path, old, new)
        assert done.kept is not None and done.kept.is_file(), "the one that was just set aside stays"
