"""The module store: what is written is read back, and every way to break it has its own message."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pluto_edge._schema import UnknownKeyWarning
from pluto_edge.errors import BackboneError, ConfigError, StoreError
from pluto_edge.modules import Dims, Module, SelectorWeights
from pluto_edge.store import Store, read_module_config
from pluto_edge.vit import backbone
from pluto_edge.vit.backbone import create, read_layout


@pytest.fixture
def store(make_store: Callable[..., Store], tmp_path: Path) -> Store:
    """A copy that a test may break."""
    shutil.copytree(make_store().path, tmp_path / "store")
    return Store(tmp_path / "store")


def edit(file: Path, **changes: object) -> None:
    data = json.loads(file.read_text())
    data.update(changes)
    file.write_text(json.dumps({k: v for k, v in data.items() if v is not ...}))


def test_round_trip(store: Store) -> None:
    module, config = store.load_module("domain-1"), store.module_config("domain-1")
    renamed = Module("new", module.dims, module.tensors)
    store.save_module(renamed, type(config)(**{**vars(config), "name": "new"}), "# card\n")
    again = Store(store.path)
    assert again.names == ("domain-0", "domain-1", "domain-2", "new")
    for key, value in again.load_module("new").tensors.items():
        np.testing.assert_array_equal(value, module.tensors[key])
    assert (store.path / "modules/new/README.md").read_text() == "# card\n"


def test_roles(store: Store) -> None:
    assert (store.specialists, store.generalist) == (store.names, None)
    edit(store.path / "modules/domain-1/adapter_config.json", role="generalist")
    assert (store.specialists, store.generalist) == (("domain-0", "domain-2"), "domain-1")
    edit(store.path / "modules/domain-2/adapter_config.json", role="generalist")
    with pytest.raises(StoreError, match="'domain-1' and 'domain-2' are both generalists"):
        _ = store.generalist


def test_replacing_tensors_leaves_the_description_alone(store: Store) -> None:
    folder = store.path / "modules/domain-1"
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    module = store.load_module("domain-1")
    halves = {**module.tensors, "head_bias": module.tensors["head_bias"].astype(np.float16)}
    store.replace_tensors(Module("domain-1", module.dims, halves))
    after = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert {n for n in before if before[n] != after[n]} == {"adapter_model.safetensors"}
    found = load_file(store.module_file("domain-1"))
    assert found["head_bias"].dtype == np.float16 and found["head_weight"].dtype == np.float32
    del halves["head_bias"]
    with pytest.raises(StoreError, match="tensor 'head_bias' is missing"):
        store.replace_tensors(Module("domain-1", module.dims, halves))
    with pytest.raises(StoreError, match="no module 'new'"):
        store.replace_tensors(Module("new", module.dims, module.tensors))


def test_json_is_sorted(store: Store) -> None:
    data = json.loads((store.path / "store.json").read_text())
    assert list(data) == sorted(data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": ...}, "key 'classes' is missing"),
        ({"classes": "abc"}, "classes: want a list"),
        ({"classes": ["a", "a"]}, "'a' is there twice"),
        ({"classes": ["a"]}, "want 2 to"),
        ({"kind": "lora"}, "kind: want one of 'vpt', 'adapter'"),
        ({"size": 0}, "size: want at least 1"),
        ({"sources": ["../x"]}, "not a safe name"),
        ({"sources": ["a/b"]}, "not a safe name"),
        ({"sources": [""]}, "not a safe name"),
        ({"schema_version": 99}, "newer than this pluto-edge.*pip install --upgrade"),
        ({"schema_version": "1"}, "schema_version: want a positive integer"),
        ({"backbone": {"architecture": "x", "width": 48}}, "key 'depth' is missing"),
    ],
)
def test_bad_store_json(store: Store, changes: dict[str, object], message: str) -> None:
    edit(store.path / "store.json", **changes)
    with pytest.raises(StoreError, match=message):
        Store(store.path)


@pytest.mark.parametrize("option", ["checkpoint_path", "pretrained_cfg", "cache_dir", "pretrained_cfg_overlay"])
def test_options_that_name_files_are_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """A store from anywhere must not reach `torch.load`."""
    monkeypatch.setattr(backbone.timm, "create_model", lambda *a, **k: pytest.fail("timm was asked"))
    data = json.loads((store.path / "store.json").read_text())
    data["backbone"]["options"][option] = str(tmp_path / "evil.pth")
    (store.path / "store.json").write_text(json.dumps(data))
    with pytest.raises(StoreError, match=f"options: '{option}' is not allowed"):
        Store(store.path)
    with pytest.raises(BackboneError, match=f"options: '{option}' is not allowed"):
        create("vit_tiny_patch16_224", (32, 32), {option: "evil.pth"})


@pytest.mark.parametrize("name", ["../../evil", "", "\x1b[31mred", "a/b", "x" * 200, "\ud800"])
def test_module_names_that_are_not_safe(store: Store, name: str) -> None:
    folder = store.path / "modules/domain-0"
    edit(folder / "adapter_config.json", name=name)
    with pytest.raises(StoreError, match=r"not a safe name|name: want text") as caught:
        read_module_config(folder)
    assert "\x1b" not in str(caught.value)


def test_a_module_of_impossible_size(store: Store) -> None:
    edit(store.path / "modules/domain-0/adapter_config.json", size=0)
    with pytest.raises(StoreError, match="size: want at least 1"):
        read_module_config(store.path / "modules/domain-0")


def test_unknown_key_warns(store: Store) -> None:
    edit(store.path / "store.json", colour="blue")
    with pytest.warns(UnknownKeyWarning, match="colour"):
        Store(store.path)


def test_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no store\.json"):
        Store(tmp_path)


def test_create_refuses_a_full_folder(store: Store) -> None:
    with pytest.raises(StoreError, match="not empty"):
        Store.create(store.path, store.config)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("prompt", np.zeros((4, 47), np.float32), r"prompt: want shape \[4, 48\], got \[4, 47\]"),
        ("prompt", np.full((4, 48), np.nan, np.float32), "prompt: holds NaN"),
        ("head_bias", np.zeros(7, np.float64), "want float32 or float16, got float64"),
        ("head_weight", None, "tensor 'head_weight' is missing"),
        ("extra", np.zeros(1, np.float32), "'extra' is not part"),
        ("ln_scale", np.ones((7, 48), np.float32), "come together"),
    ],
)
def test_bad_module_tensors(store: Store, key: str, value: np.ndarray | None, message: str) -> None:
    file = store.path / "modules/domain-0/adapter_model.safetensors"
    tensors = load_file(file)
    tensors.pop(key, None)
    if value is not None:
        tensors[key] = value
    save_file(tensors, file)
    with pytest.raises(StoreError, match=message):
        store.load_module("domain-0")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": [f"class-{i}" for i in range(6)]}, "classes are not the store's.*'class-6'"),
        ({"classes": [f"class-{i}" for i in reversed(range(7))]}, "another order"),
        ({"architecture": "vit_base"}, "made for vit_base"),
        ({"size": 5}, "the store holds"),
        ({"name": "other"}, "says that its name is 'other'"),
    ],
)
def test_module_that_does_not_fit(store: Store, changes: dict[str, object], message: str) -> None:
    edit(store.path / "modules/domain-0/adapter_config.json", **changes)
    with pytest.raises(StoreError, match=message):
        store.load_module("domain-0")


def test_truncated_and_missing_files(store: Store) -> None:
    file = store.path / "modules/domain-0/adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(StoreError, match="not a whole safetensors file"):
        store.load_module("domain-0")
    file.unlink()
    with pytest.raises(StoreError, match="is missing"):
        store.load_module("domain-0")
    store.selector_file.unlink()
    with pytest.raises(StoreError, match="pluto train"):
        store.load_selector()
    with pytest.raises(StoreError, match="no module 'absent'"):
        store.load_module("absent")


def test_a_module_folder_that_leads_outside_is_refused(store: Store, tmp_path: Path) -> None:
    folder = store.path / "modules/domain-0"
    shutil.move(folder, tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="leads outside"):
        store.load_module("domain-0")


def test_saving_nan_changes_nothing(store: Store) -> None:
    module, config = store.load_module("domain-0"), store.module_config("domain-0")
    wrong = Module(module.name, module.dims, {**module.tensors, "prompt": np.zeros((1, 1), np.float32)})
    before = (store.path / "modules/domain-0/adapter_model.safetensors").read_bytes()
    with pytest.raises(StoreError, match="prompt: want shape"):
        store.save_module(wrong, config)
    assert (store.path / "modules/domain-0/adapter_model.safetensors").read_bytes() == before


def test_selector_shapes(store: Store) -> None:
    good = store.load_selector().tensors
    assert store.load_selector().parameters == 48 * 32 + 32 * 32 + 7 * 32 + 32 * 32 + 4 * 32
    for change, message in (
        ({"down_x": np.zeros((47, 32), np.float32)}, "down_x: want shape"),
        ({"up_x": np.zeros(3, np.float32)}, "must be matrices"),
        ({"scale_l": np.zeros(3, np.float32)}, "scale_l: want shape"),
    ):
        with pytest.raises(StoreError, match=message):
            SelectorWeights.from_tensors({**good, **change}, width=48, classes=7, where="x", error=StoreError)
    with pytest.raises(StoreError, match="'up_l' is missing"):
        tensors = {k: v for k, v in good.items() if k != "up_l"}
        SelectorWeights.from_tensors(tensors, width=48, classes=7, where="x", error=StoreError)


def test_dims_are_checked() -> None:
    with pytest.raises(ConfigError, match="kind"):
        Dims("lora", 1, 1, 1, 2)  # type: ignore[arg-type]


def test_one_of_many_classes_that_is_there_twice(store: Store) -> None:
    """As many as there may be: what compares each with each would take minutes."""
    classes = tuple(f"class-{i}" for i in range(99_999))
    with pytest.raises(ConfigError, match="classes: 'class-7' is there twice"):
        replace(store.config, classes=(*classes, "class-7"))


# The paper's table, 100 classes: prompts of 96 tokens, adapters with bottleneck 8, and the full model.
PAPER = {
    "vit_tiny_patch16_224": (37_732, 58_564, 5_543_716),
    "vit_small_patch16_224": (75_364, 116_932, 21_704_164),
    "vit_base_patch16_224": (150_628, 233_668, 85_875_556),
}


@pytest.mark.parametrize("name", PAPER)
def test_parameter_counts_are_the_papers(name: str) -> None:
    vit = create(name, (224, 224), {})
    layout = read_layout(vit)
    vpt = Dims("vpt", 96, layout.width, layout.depth, 100)
    adapter = Dims("adapter", 8, layout.width, layout.depth, 100)
    full = sum(p.numel() for p in vit.parameters()) + 100 * layout.width + 100
    assert (vpt.parameters, adapter.parameters, full) == PAPER[name]
