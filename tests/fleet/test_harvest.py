"""What was learned as a module: as good elsewhere as here, without an image, and checked on arrival."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pluto_edge import Runtime
from pluto_edge._files import write_tensors
from pluto_edge.errors import ConfigError, StoreError
from pluto_edge.fleet.harvest import check, harvest, inspect
from pluto_edge.modules import Module
from pluto_edge.preprocess import ImageBatch
from pluto_edge.store import MODULE_FILE, read_module, read_module_config
from tests.digits import MODULES, device, draw

IMAGES, DIGITS = draw("low_light", 256, seed=1)


def accuracy(runtime: Runtime) -> float:
    return float((runtime.predict(IMAGES).labels == DIGITS).mean())


def looks(runtime: Runtime, images: np.ndarray) -> np.ndarray:
    return runtime.learner.network.look(ImageBatch(images, runtime.manifest.preprocessing)).x_hat


@pytest.fixture(scope="module")
def adapted() -> Runtime:
    runtime = device("low_light", "generalist")
    seen = draw("low_light", 256)[0]
    for start in range(0, 256, 64):
        runtime.step(seen[start : start + 64])
    return runtime


@pytest.fixture(scope="module")
def parent(adapted: Runtime) -> Module:
    assert adapted.learner.state.top is not None
    return adapted.bundle.load_module(adapted.learner.state.top)


@pytest.fixture
def folder(adapted: Runtime, tmp_path: Path) -> Path:
    harvest(adapted.learner, tmp_path / "night", name="night", looks=looks(adapted, draw("low_light", 256)[0]))
    return tmp_path / "night"


def test_another_device_is_as_good_as_the_one_that_learned(adapted: Runtime, folder: Path) -> None:
    with device("low_light", "generalist") as other:
        before = accuracy(other)
        other.add_module(folder)
        assert other.predict(IMAGES).selected[0] == "night"
        assert before + 0.02 < accuracy(adapted)
        assert accuracy(other) == pytest.approx(accuracy(adapted), abs=0.02)


def test_what_it_says_of_itself(adapted: Runtime, parent: Module, folder: Path) -> None:
    config = read_module_config(folder)
    state = adapted.learner.state
    assert config.name == "night" and config.role == "specialist" and config.backbone == adapted.manifest.backbone
    assert config.parent == adapted.learner.network.modules[parent.name].digest
    assert config.metrics == {"images": 256.0, "steps": 4.0, "rollbacks": float(state.rollbacks)}
    card = (folder / "README.md").read_text()
    assert config.parent in card and "| images seen | 256 |" in card and "of 256 images" in card
    assert {f.name for f in folder.iterdir()} == {"README.md", "adapter_config.json", MODULE_FILE}
    assert all(f.right for f in inspect(folder, parent)), [*map(str, inspect(folder, parent))]


def test_classes_that_were_seen_seldom_move_with_all(tmp_path: Path) -> None:
    with device() as runtime:
        images, digits = draw("clear", 256)
        runtime.step(images[digits == 3])
        top = runtime.learner.state.top
        assert top is not None and (runtime.learner.state.prototypes.modules[top].counts >= 10).sum() == 1
        config = harvest(runtime.learner, tmp_path / "m")
        assert config.name.startswith(f"{top}-")
        own = read_module(tmp_path / "m", config).signature(StoreError)
        theirs = runtime.bundle.load_module(top).signature(StoreError)
        assert own is not None and theirs is not None
        moved = own.class_means - theirs.class_means
        others = np.delete(moved, 3, axis=0)
        np.testing.assert_allclose(others, np.broadcast_to(others[0], others.shape), atol=4e-3)  # half precision
        assert not np.allclose(moved[3], others[0], atol=4e-3)


def test_a_module_that_had_joined(tmp_path: Path) -> None:
    with device("fog") as runtime:
        runtime.add_module(MODULES / "fog")
        runtime.step(draw("fog", 64)[0])
        state = runtime.learner.state
        runtime.learner.state = replace(state, top="fog")
        runtime.save(tmp_path / "state")
        config = harvest(runtime.learner, tmp_path / "a", "fog", parent=MODULES / "fog")
        assert config.parent == runtime.learner.network.modules["fog"].digest


def test_what_is_refused(adapted: Runtime, tmp_path: Path) -> None:
    with device() as fresh:
        with pytest.raises(ConfigError, match="no module leads yet"):
            harvest(fresh.learner, tmp_path / "m")
        with pytest.raises(ConfigError, match="nothing was learned for it"):
            harvest(fresh.learner, tmp_path / "m", "clear")
    with pytest.raises(ConfigError, match="want those of at least 32 images, got 3"):
        harvest(adapted.learner, tmp_path / "m", looks=looks(adapted, IMAGES[:3]))
    with pytest.raises(ConfigError, match="which module is to be offered"):
        harvest(adapted.learner, tmp_path / "m", "nobody")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    "tensor, change, finding",
    [
        ("ln_scale", lambda v: v * 2, "affines"),
        ("head_weight", lambda v: v + 1e-3, "frozen"),
        ("down_weight", lambda v: v * 0, "frozen"),
        ("head_bias", lambda v: v + 50, "bias"),
        ("signature.class_means", lambda v: v + 100, "class means"),
        ("signature.numbers", lambda v: -v, "folder"),
        ("ln_bias", lambda v: v * np.nan, "folder"),
        ("head_bias", lambda v: v[:-1], "folder"),
    ],
)
def test_what_arrives_is_checked(folder: Path, parent: Module, tensor: str, change, finding: str) -> None:
    module = read_module(folder, read_module_config(folder))
    changed = {**module.tensors, tensor: change(module.tensors[tensor]).astype(np.float32)}
    write_tensors(folder / MODULE_FILE, changed)
    assert finding in [f.what for f in inspect(folder, parent) if not f.right]


def test_of_another_parent(folder: Path, adapted: Runtime, parent: Module) -> None:
    other = next(n for n in adapted.modules if n != parent.name)
    found = {f.what: f for f in inspect(folder, adapted.bundle.load_module(other))}
    assert not found["parent"].right and not found["frozen"].right
    bare = replace(parent, tensors={k: v for k, v in parent.tensors.items() if k != "ln_bias"})
    assert [f.what for f in check(parent, bare)] == ["shapes"]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 60_000), value=st.integers(0, 255), cut=st.none() | st.integers(0, 60_000))
def test_damaged_folders_are_findings_and_no_errors(
    folder: Path, parent: Module, at: int, value: int, cut: int | None
) -> None:
    whole = bytearray((folder / MODULE_FILE).read_bytes())
    try:
        damaged = bytearray(whole)
        damaged[at % len(whole)] = value
        (folder / MODULE_FILE).write_bytes(bytes(damaged[:cut]))
        assert all(isinstance(f.detail, str) for f in inspect(folder, parent))
    finally:
        (folder / MODULE_FILE).write_bytes(bytes(whole))
