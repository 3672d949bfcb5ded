"""`from pluto_edge import train, export, evaluate`: the commands from Python, on folders and on datasets."""

import ast
import inspect
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import pluto_edge
from pluto_edge import Bundle, ConfigError, Runtime, Store, StoreError, evaluate, export, train
from pluto_edge.cli import eval as eval_command
from pluto_edge.cli import main
from pluto_edge.cli import train as train_command
from pluto_edge.preprocess import image_files, open_image
from tests.shapes import ARCHITECTURE, SIZE, write_domain

ROOT = Path(__file__).parent.parent
FAST: dict[str, Any] = {"epochs": 2, "batch": 8, "quiet": True}


def backbone(weights: Path) -> dict[str, Any]:
    return {"backbone": ARCHITECTURE, "weights": weights, "image_size": SIZE}


class Photos:
    """A folder of classes as torchvision has it: (image, number), and the names in `classes`."""

    def __init__(self, folder: Path, classes: tuple[str, ...]) -> None:
        self.classes = classes
        self.files = image_files(folder)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[Image.Image, int]:
        file = self.files[number]
        return open_image(file), self.classes.index(file.parent.name)


# names


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", ["train", "export", "evaluate"])
def test_a_name_is_package_and_function_in_whatever_order(name: str) -> None:
    below = {"train": "trainer", "export": "exporter", "evaluate": "results"}[name]
    code = f"""
from pluto_edge import {name}
import sys
assert not set(sys.modules) & {{"torch", "onnx", "onnxruntime", "timm"}}
import pluto_edge.{name}.{below} as below
import pluto_edge
assert pluto_edge.{name} is {name} is sys.modules["pluto_edge.{name}"] and callable({name})
assert {name}.{below} is below
import importlib
importlib.reload(pluto_edge)
assert pluto_edge.{name} is {name}
"""
    run(code)
    run(f"import pluto_edge.{name}.{below}\nfrom pluto_edge import {name}\nassert callable({name})")


def test_importing_everything_public_loads_no_torch() -> None:
    code = "import sys\nfrom pluto_edge import *\nprint(*{m.partition('.')[0] for m in sys.modules})"
    assert not set(run(code).split()) & {"torch", "timm", "onnx", "onnxscript", "matplotlib", "cv2", "tqdm"}


def test_train_and_evaluate_take_what_the_commands_take() -> None:
    of_commands = {"help", "json", "bundle_flag"}  # how they print, and what they are asked once more
    python = {
        "train": {"classes", "backbone_options", "progress"},
        "eval": {"classes", "progress"},
    }  # no words for these there
    for name, command, function in (("train", train_command, train), ("eval", eval_command, evaluate)):
        parser = ArgumentParser()
        command.add_arguments(parser)
        taken = {a.dest for a in parser._actions} - of_commands
        assert set(inspect.signature(function).parameters) - python[name] == taken
    of_export = {"store", "out", "precision", "profile", "batch", "learn_from", "force", "on_stage"}
    assert set(inspect.signature(export).parameters) == of_export


@pytest.mark.parametrize("name", [n for n in pluto_edge.__all__ if n != "__version__"])
def test_every_public_name_is_explained(name: str) -> None:
    value = getattr(pluto_edge, name)
    assert (value.__doc__ or "").strip()
    for called, member in vars(value).items() if inspect.isclass(value) else ():
        if callable(member) and not called.startswith("_"):
            assert (member.__doc__ or "").strip(), f"{name}.{called}"


@pytest.mark.parametrize("function", ["train.api:train", "evaluate.api:evaluate", "export.exporter:run_export"])
def test_every_argument_is_explained(function: str) -> None:
    module, _, name = function.partition(":")
    found = getattr(__import__(f"pluto_edge.{module}", fromlist=[name]), name)
    text = inspect.getdoc(found) or ""
    missing = [p for p in inspect.signature(found).parameters if f"\n    {p}: " not in text]
    assert not missing


def test_examples_import_nothing_private() -> None:
    for file in (ROOT / "examples").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or "", *(a.name for a in node.names)] if isinstance(node, ast.ImportFrom) else []
            names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            assert not [n for n in names if any(p.startswith("_") for p in n.split("."))], file


# what they do


def test_from_folders_to_a_verdict(photos: Path, weights: Path, tmp_path: Path, capfd: Any) -> None:
    """As the commands do it, bit for bit."""
    report = train(photos, tmp_path / "store", **backbone(weights), **FAST)
    assert "dawn" in str(report) and "selector's blend" in str(report)
    command = ["train", "--data", str(photos), "--out", str(tmp_path / "other"), "--backbone", ARCHITECTURE]
    command += ["--weights", str(weights), "--image-size", str(SIZE), "--epochs", "2", "--batch", "8", "--quiet"]
    assert main(command) == 0
    for file in ("modules/dawn/adapter_model.safetensors", "selector.safetensors", "seen.safetensors"):
        assert (tmp_path / "store" / file).read_bytes() == (tmp_path / "other" / file).read_bytes()
    made = export(tmp_path / "store", tmp_path / "bundle")
    assert made.manifest == Bundle(tmp_path / "bundle").manifest
    found = evaluate(made.path, photos, method=["single", "pluto"], target="dawn", seeds=1, out=tmp_path / "eval")
    assert (
        str(found) == found.verdict != "" and found._repr_markdown_() == (tmp_path / "eval/results.md").read_text()
    )
    assert found.evaluation.left_out["dawn"].train == 24
    assert capfd.readouterr().out == ""


@pytest.fixture
def datasets(photos: Path) -> Callable[[], dict[str, Any]]:
    """One domain as torchvision has it, with an order of its own, one as pairs, each time anew."""
    order = ("square", "disc", "bars")

    def pairs() -> Iterator[tuple[np.ndarray, str]]:
        for file in image_files(photos / "noon"):
            yield np.asarray(open_image(file)), file.parent.name

    return lambda: {"dawn": Photos(photos / "dawn", order), "noon": pairs()}


def test_from_datasets_to_a_verdict(
    datasets: Callable[[], dict[str, Any]], photos: Path, weights: Path, tmp_path: Path
) -> None:
    train(datasets(), tmp_path / "store", **backbone(weights), **FAST)
    store = Store(tmp_path / "store")
    assert store.names == ("dawn", "noon", "generalist") and store.config.classes == ("square", "disc", "bars")
    seen = store.load_seen()
    assert seen is not None and len(seen.train) + len(seen.validation) == 60
    before = sorted((tmp_path / "store/modules").rglob("*.safetensors"))
    times = [f.stat().st_mtime_ns for f in before]
    again = train(datasets(), into=tmp_path / "store", **FAST)  # nothing to do but the selector
    assert [f.stat().st_mtime_ns for f in before] == times and again.store == store.path
    write_domain(photos, "night")
    more = {**datasets(), "night": photos / "night"}
    train(more, into=tmp_path / "store", only=["night"], **FAST)
    assert Store(tmp_path / "store").names == ("dawn", "noon", "night", "generalist")
    export(tmp_path / "store", tmp_path / "bundle")
    assert Runtime(tmp_path / "bundle").classes == ("square", "disc", "bars")
    new = {
        "new": [(open_image(f), f.parent.name) for f in image_files(photos / "dawn")],
        "dawn": datasets()["dawn"],
    }
    found = evaluate(tmp_path / "bundle", new, method="single", seeds=1, out=tmp_path / "eval")
    assert found.evaluation.left_out["dawn"].train == 24  # known by their bytes, under whatever name
    assert found.evaluation.left_out["new"].train == 24
    same = evaluate(tmp_path / "bundle", new, method="single", seeds=1, out=tmp_path / "eval")
    assert same.findings == found.findings


def test_a_domain_left_out(photos: Path, weights: Path, tmp_path: Path) -> None:
    write_domain(photos, "night")
    data = {n: Photos(photos / n, ("bars", "disc", "square")) for n in ("dawn", "noon", "night")}
    train(data, tmp_path / "store", **backbone(weights), **FAST)
    found = evaluate(
        None,
        data,
        leave_out="night",
        store=tmp_path / "store",
        method=["single"],
        seeds=1,
        epochs=1,
        out=tmp_path / "eval",
    )
    assert Bundle(tmp_path / "eval/without-night/bundle").manifest.specialists == ("dawn", "noon")
    assert {r.target for r in found.evaluation.results} == {"night"}


# what they refuse


def test_wrong_arguments(photos: Path, weights: Path, tmp_path: Path, make_bundle: Callable[..., Path]) -> None:
    for wrong, message in (
        ({}, "one of the two"),
        ({"out": tmp_path / "s", "into": tmp_path / "s"}, "one of the two"),
        ({"out": tmp_path / "s"}, "--backbone: which timm ViT"),
        ({"out": tmp_path / "s", **backbone(weights), "pretrained": "x"}, "--weights and --pretrained"),
        ({"out": tmp_path / "s", **backbone(weights), "kind": "lora"}, "--kind: want vpt or adapter, got 'lora'"),
        (
            {"out": tmp_path / "s", **backbone(weights), "prompts": 3},
            "--prompts: modules of kind adapter have none",
        ),
        ({"out": tmp_path / "s", **backbone(weights), "only": ["dusk"]}, "--only: no domain 'dusk'"),
        ({"out": tmp_path / "s", **backbone(weights), "val_share": 1.0}, "--val-share"),
        ({"out": tmp_path / "s", **backbone(weights), "per_class": 0}, "--per-class"),
        ({"out": tmp_path / "s", **backbone(weights), "corruptions": ["dust"]}, "--corruptions: no 'dust'"),
        (
            {"out": tmp_path / "s", **backbone(weights), "corruptions": "all"},
            "wants one clean domain folder in .*photos, found 2",
        ),
        ({"out": tmp_path / "s", **backbone(weights), "severities": [6]}, "--severities: want 1 to 5"),
        ({"out": tmp_path / "s", **backbone(weights), "epochs": 0}, "epochs: want at least 1"),
        ({"into": tmp_path / "s", "image_size": 8}, "--image-size: with --into it is the store's own"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(photos, **wrong)
    assert not (tmp_path / "s").exists() and not list(tmp_path.glob(".s*"))
    with pytest.raises(StoreError, match="not empty"):
        train({"day": []}, photos, **backbone(weights))  # before any image is read
    for wrong, message in (
        ({"bundle": None}, "--bundle: give one"),
        ({"bundle": None, "leave_out": "dawn"}, "--leave-out: give the store that the domain is left out of"),
        ({"bundle": make_bundle(), "leave_out": "dawn"}, "--leave-out: makes a bundle of its own; leave .* out"),
        ({"bundle": make_bundle(), "limit": 0}, "--limit: want at least 1"),
        ({"bundle": make_bundle(), "seeds": 0}, "seeds: want at least 1"),
        ({"bundle": make_bundle()}, "is no class of the bundle"),
    ):
        with pytest.raises(ConfigError, match=message):
            evaluate(data=photos, out=tmp_path / "eval", **wrong)


def test_datasets_leave_nothing_where_training_cannot_begin(weights: Path, tmp_path: Path) -> None:
    one = [(Image.new("RGB", (8, 8)), "cat")] * 4
    with pytest.raises(ConfigError, match="two classes or more"):
        train({"day": one}, tmp_path / "store", **backbone(weights))
    assert not list(tmp_path.glob("*store*")) and not list(tmp_path.glob(".*"))
