"""Folders to store, as a user does it: train, add, stop, go on, spread over processes."""

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pluto_edge import Runtime, _files
from pluto_edge.cli import main
from pluto_edge.errors import ConfigError
from pluto_edge.export.exporter import run_export
from pluto_edge.manifest import SEEN, Bundle
from pluto_edge.seen import Seen, hashes_of
from pluto_edge.store import Store
from pluto_edge.train.cache import Cache
from pluto_edge.train.data import scan
from pluto_edge.train.module import train_module
from pluto_edge.train.recipe import Recipe, SelectorRecipe
from pluto_edge.train.selector import SourceLogits, compare, sizes, train_selector
from pluto_edge.train.trainer import BackboneChoice, create_store
from pluto_edge.vit.backbone import load_backbone
from pluto_edge.vit.torch_vit import TorchSelector, TorchViT
from tests.shapes import ARCHITECTURE, SIZE, write_domain

FAST = ["--epochs", "3", "--batch", "8", "--quiet"]


def command(photos: Path, out: Path, weights: Path, *more: str) -> list[str]:
    where = ["--data", str(photos), "--out", str(out)]
    backbone = ["--backbone", ARCHITECTURE, "--weights", str(weights), "--image-size", str(SIZE)]
    return ["train", *where, *backbone, *FAST, *more]


def digests(store: Path, names: tuple[str, ...]) -> dict[str, str]:
    files = [p for n in names for p in sorted((store / "modules" / n).iterdir())]
    return {str(p.relative_to(store)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def check_seen(seen: Seen | None, photos: Path, modules: tuple[str, ...]) -> None:
    """It has the images of every domain below the folder, each in its part, and these modules."""
    assert seen is not None and seen.modules == modules
    for part, found in (("train", seen.train), ("val", seen.validation)):
        files = [s.path for d in scan(photos) for s in getattr(d, part)]
        np.testing.assert_array_equal(found, hashes_of(files))
        assert len(found) == len(files) > 0


@pytest.mark.parametrize("kind", ["vpt", "adapter"])
def test_train_export_predict(photos: Path, weights: Path, tmp_path: Path, kind: str) -> None:
    store = tmp_path / "store"
    assert main(command(photos, store, weights, "--kind", kind)) == 0
    assert Store(store).names == ("dawn", "noon", "generalist")
    for name in Store(store).names:
        assert "validation accuracy" in (store / "modules" / name / "README.md").read_text()
        metrics = Store(store).module_config(name).metrics
        assert metrics["accuracy"] > 0.4  # a random backbone, three classes
        assert metrics["accuracy"] >= metrics["probe"] >= 0
    text = (store / "README.md").read_text()
    assert "uniform average" in text and "accuracy.png" in text
    assert (store / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    run_export(store, tmp_path / "bundle")
    runtime = Runtime(tmp_path / "bundle")
    check_seen(Bundle(tmp_path / "bundle").load_seen(), photos, ("dawn", "noon", "generalist"))
    assert SEEN in Bundle(tmp_path / "bundle").manifest.files
    (domain, _) = scan(photos)
    prediction = runtime.predict([domain.read(s) for s in domain.val])
    assert (prediction.labels == [s.label for s in domain.val]).mean() > 0.4


def test_adding_a_domain_leaves_the_others_alone(
    photos: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    main(command(photos, store, weights))
    before, selector = digests(store, ("dawn", "noon")), (store / "selector.safetensors").read_bytes()
    write_domain(photos, "night")
    assert main(["train", "--data", str(photos), "--into", str(store), "--only", "night", *FAST]) == 0
    assert digests(store, ("dawn", "noon")) == before
    assert Store(store).names == ("dawn", "noon", "night", "generalist")
    assert (store / "selector.safetensors").read_bytes() != selector
    check_seen(Store(store).load_seen(), photos, ("dawn", "noon", "generalist", "night"))
    assert main(["train", "--data", str(photos), "--into", str(store), "--kind", "adapter", *FAST]) == 2
    assert "it is the store's own" in capsys.readouterr().err
    assert main(["train", "--data", str(photos), "--into", str(store), "--only", "dusk", *FAST]) == 2
    assert "no domain 'dusk'; there are: dawn, night, noon" in capsys.readouterr().err


def test_modules_whose_images_nobody_kept_stay_unknown(photos: Path, weights: Path, tmp_path: Path) -> None:
    """A store of an earlier version: what a run adds is known, what was there is not."""
    store = tmp_path / "store"
    main(command(photos, store, weights))
    Store(store).seen_file.unlink()
    write_domain(photos, "night")
    assert main(["train", "--data", str(photos), "--into", str(store), "--only", "night", *FAST]) == 0
    seen = Store(store).load_seen()
    assert seen is not None and seen.unknown(Store(store).names) == ["dawn", "noon"]


def test_json_report(photos: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photos / "dawn/disc/broken.png").write_bytes(b"x")
    arguments = [a for a in command(photos, tmp_path / "store", weights) if a != "--quiet"]
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report["matrix"]) == {"dawn", "noon", "generalist"}
    assert all(set(row) == {"dawn", "noon"} for row in report["matrix"].values())
    row = report["matrix"]["generalist"]
    assert min(row.values()) <= report["generalist"] <= max(row.values())
    assert set(report["selector"]) == {"blend", "uniform", "best_single", "epochs"}
    (skipped,) = report["skipped"]
    assert "broken.png" in skipped
    seen = Store(tmp_path / "store").load_seen()
    assert seen is not None and len(seen.train) + len(seen.validation) == 60, "an unreadable image was not seen"


def test_processes_give_the_same_store(photos: Path, weights: Path, tmp_path: Path) -> None:
    """One process and two: the same bytes in every module (one thread each, so that sums have one order)."""
    for jobs in ("1", "2"):
        assert main(command(photos, tmp_path / jobs, weights, "--jobs", jobs, "--threads", "1")) == 0
    names = ("dawn", "noon", "generalist")
    assert Store(tmp_path / "1").names == Store(tmp_path / "2").names == names
    assert digests(tmp_path / "1", names) == digests(tmp_path / "2", names)
    assert (tmp_path / "1/selector.safetensors").read_bytes() == (tmp_path / "2/selector.safetensors").read_bytes()


def test_corruption_domains(
    photos: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--corruptions", "fog,contrast", "--severities", "2,5")
    assert main(command(photos, tmp_path / "store", weights, *more)) == 2
    assert "one clean domain folder" in capsys.readouterr().err
    write_domain(tmp_path / "clean", "noon")
    assert main(command(tmp_path / "clean", tmp_path / "store", weights, *more)) == 0
    assert Store(tmp_path / "store").specialists == ("fog-2", "fog-5", "contrast-2", "contrast-5")
    assert "fog, severity 2" in Store(tmp_path / "store").module_config("fog-2").source
    check_seen(Store(tmp_path / "store").load_seen(), tmp_path / "clean", Store(tmp_path / "store").names)
    assert main(command(tmp_path / "clean", tmp_path / "few", weights, *more, "--per-class", "2")) == 0
    seen = Store(tmp_path / "few").load_seen()
    assert seen is not None and len(seen.train) > 6, "four domains that draw two images of three classes each"
    for wrong in (("--corruptions", "rain"), ("--corruptions", "fog", "--severities", "0-9")):
        assert main(command(tmp_path / "clean", tmp_path / "other", weights, *wrong)) == 2
        assert not (tmp_path / "other").exists()


def test_a_stopped_training_goes_on_to_the_same_end(
    photos: Path, weights: Path, tmp_path: Path, make_store: Callable[..., Store]
) -> None:
    """Stopped in the middle of an epoch: the epoch is done again, from the same numbers."""
    main(command(photos, tmp_path / "store", weights))
    store = Store(tmp_path / "store")
    vit = TorchViT(load_backbone(store))
    domain = scan(photos)[0]
    cache = Cache(store, domain)
    cache.fill(vit)
    train, val = cache.embedded("train"), cache.embedded("val")
    dims, recipe = store.config.dims, Recipe(epochs=4, batch=8, patience=9)
    whole = train_module(vit, dims, train, val, recipe)
    seen = 0

    def stop(done: int, total: int, note: str) -> None:
        nonlocal seen
        seen += 1
        assert total == 12  # three batches an epoch
        if seen == 9:  # in the third, as the start is told, too
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_module(vit, dims, train, val, recipe, tmp_path / "checkpoint", stop)
    assert (tmp_path / "checkpoint").is_file()
    resumed = train_module(vit, dims, train, val, recipe, tmp_path / "checkpoint")
    assert (resumed.accuracy, resumed.probe) == (whole.accuracy, whole.probe)
    for name, value in whole.module.items():
        torch.testing.assert_close(resumed.module[name], value, rtol=0, atol=0)


def test_interrupted_and_killed_runs_leave_a_usable_store(photos: Path, weights: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    arguments = [a if a != "3" else "400" for a in command(photos, store, weights, "--patience", "400")]
    for stop, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        process = subprocess.Popen(
            [sys.executable, "-m", "pluto_edge.cli", *arguments],
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
        )
        while not list(store.glob(".work/dawn.*")) and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(stop)
        message = process.communicate()[1]
        assert process.returncode == code, message
        if stop == signal.SIGINT:
            assert f"Go on with: --into {store}" in message
        assert Store(store).names == ()
        arguments = [
            "train",
            "--data",
            str(photos),
            "--into",
            str(store),
            "--epochs",
            "400",
            "--batch",
            "8",
            "--quiet",
        ]
        arguments += ["--patience", "400"]
    assert main(["train", "--data", str(photos), "--into", str(store), *FAST]) == 0
    run_export(store, tmp_path / "bundle")


def test_a_full_disk_leaves_nothing_half_written(
    photos: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = _files.write_bytes

    def full(path: Path, data: bytes) -> None:
        if path.name == "adapter_model.safetensors":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        original(path, data)

    with monkeypatch.context() as disk:
        disk.setattr(_files, "write_bytes", full)
        assert main(command(photos, tmp_path / "store", weights)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "No space left on device; make room" in line and f"Go on with: --into {tmp_path / 'store'}" in line
    assert Store(tmp_path / "store").names == ()
    assert list((tmp_path / "store/modules").iterdir()) == []
    assert main(["train", "--data", str(photos), "--into", str(tmp_path / "store"), *FAST]) == 0
    assert main(command(photos, tmp_path / "whole", weights)) == 0
    assert digests(tmp_path / "store", ("dawn", "noon")) == digests(tmp_path / "whole", ("dawn", "noon"))


@pytest.mark.parametrize("file", ["selector.safetensors", "backbone.safetensors"])
def test_a_full_disk_leaves_no_new_store(
    photos: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    original = os.fdopen

    def full(handle: int, mode: str) -> object:
        if list(tmp_path.rglob(f".{file}.*")):
            os.close(handle)
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(handle, mode)

    monkeypatch.setattr(os, "fdopen", full)
    with pytest.raises(OSError, match=f"No space left on device: .*{file}"):
        create_store(tmp_path / "store", BackboneChoice(ARCHITECTURE, SIZE, weights), ("a", "b"), "vpt", 4)
    assert [p.name for p in tmp_path.iterdir()] == ["photos"]


def test_bad_backbones(photos: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["train", "--data", str(photos), "--out", str(tmp_path / "store"), *FAST]
    for more, message in (
        ([], "--backbone: which timm ViT"),
        (["--backbone", ARCHITECTURE], "needs weights"),
        (
            ["--backbone", ARCHITECTURE, "--weights", str(weights), "--image-size", "40"],
            "not a multiple of the patches",
        ),
        (["--backbone", "vit_of_dreams", "--weights", str(weights)], "not a timm model"),
        (["--backbone", ARCHITECTURE, "--weights", str(tmp_path / "absent")], "weights are missing"),
        (["--backbone", "vit_small_patch16_224", "--weights", str(weights)], "want shape"),
        (["--backbone", ARCHITECTURE, "--weights", str(weights), "--pretrained", "x"], "one of the two"),
        (
            ["--backbone", ARCHITECTURE, "--weights", str(weights), "--image-size", "0"],
            "--image-size: want at least 1",
        ),
        (["--backbone", ARCHITECTURE, "--weights", str(weights), "--prompts", "5"], "kind adapter have none"),
        (["--backbone", ARCHITECTURE, "--pretrained", "augreg_in21k"], "could not load the pretrained weights"),
    ):
        assert main([*base, *more]) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "store").exists()


def test_input_that_cannot_be_trained_on_leaves_no_store(
    photos: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in (photos / "noon/disc").iterdir():
        file.write_bytes(b"not an image")
    assert main(command(photos, tmp_path / "store", weights)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "noon: class 'disc' has no training image that can be read" in line
    assert not (tmp_path / "store").exists()


def test_recipes_are_validated() -> None:
    for wrong in ({"epochs": 0}, {"patch_drop": 1.0}, {"smoothing": -0.1}, {"lr": float("nan")}, {"seed": -1}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Recipe(**wrong)  # type: ignore[arg-type]
    for wrong in ({"dropout": 1.0}, {"withhold": 1.0}, {"temperature": 0.0}, {"images": 0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            SelectorRecipe(**wrong)  # type: ignore[arg-type]


def test_selector_sizes_are_the_papers() -> None:
    assert sizes(10) == (32, 32, 32, 0.5)  # Digits-Five
    assert sizes(65) == (32, 32, 64, 0.0)  # Office-Home
    assert sizes(100) == (64, 64, 64, 0.0)  # CIFAR-100-C
    assert sizes(1000) == (128, 128, 128, 0.0)  # ImageNet-C


def test_selector_learns_whom_to_trust() -> None:
    """Three modules, each right on its own domain and loud nonsense elsewhere; x̂ tells the domains apart."""
    rng = np.random.default_rng(0)

    def source(count: int) -> SourceLogits:
        domain, label = rng.integers(0, 3, count), rng.integers(0, 5, count)
        x = np.eye(3)[domain] @ rng.standard_normal((3, 16)) * 0 + np.eye(16)[domain] * 3
        logits = rng.standard_normal((count, 3, 5)) * 4
        logits[np.arange(count), domain] = np.eye(5)[label] * 4
        as_tensor = [torch.from_numpy(v.astype(np.float32)) for v in (x, logits)]
        return SourceLogits(as_tensor[0], as_tensor[1], torch.from_numpy(label), torch.from_numpy(domain))

    train, val = source(1500), source(400)
    result = train_selector(train, val, SelectorRecipe(epochs=40, dropout=0.0))
    assert result.blend > 0.95 > 0.8 > result.uniform
    assert compare(result.weights, val)[0] == result.blend
    assert result.best_single < 0.6


def test_withholding_teaches_whom_to_trust_on_a_domain_without_a_module() -> None:
    """Of each domain's two neighbours one is fair and one is nonsense; without their own module only a selector
    that had lessons without it knows which."""
    rng = np.random.default_rng(0)

    def source(count: int) -> SourceLogits:
        domain, label = rng.integers(0, 3, count), rng.integers(0, 5, count)
        logits = rng.standard_normal((count, 3, 5)) * 8
        every = np.arange(count)
        logits[every, domain] = np.eye(5)[label] * 12
        logits[every, (domain + 1) % 3] = np.eye(5)[label] * 4
        x = np.eye(16)[domain] * 3
        parts = [torch.from_numpy(v.astype(np.float32)) for v in (x, logits)]
        return SourceLogits(parts[0], parts[1], torch.from_numpy(label), torch.from_numpy(domain))

    train, val = source(1500), source(600)
    missing = [val[torch.where(val.own == d)[0]] for d in range(3)]
    scores = {}
    for withhold in (0.0, 0.8):
        weights = train_selector(train, val, SelectorRecipe(epochs=40, dropout=0.0, withhold=withhold)).weights
        assert compare(weights, val)[0] > 0.95
        rest = [
            SourceLogits(m.x_hat, m.logits[:, [j for j in range(3) if j != d]], m.labels, m.own)
            for d, m in enumerate(missing)
        ]
        scores[withhold] = np.mean([compare(weights, r)[0] for r in rest])
    assert 1 - scores[0.8] < 0.2 * (1 - scores[0.0])  # a fifth of the mistakes


def test_a_selector_that_learned_nothing_is_the_plain_average() -> None:
    """Labels that have nothing to do with the images: what fits the training images fits no others."""
    rng = np.random.default_rng(0)
    x, logits = (torch.from_numpy(rng.standard_normal(s).astype(np.float32)) for s in ((60, 8), (60, 3, 4)))
    data = SourceLogits(
        x, logits, torch.from_numpy(rng.integers(0, 4, 60)), torch.from_numpy(rng.integers(0, 3, 60))
    )
    train, val = (data[torch.arange(*part)] for part in ((0, 30), (30, 60)))
    result = train_selector(train, val, SelectorRecipe(epochs=20, lr=0.05, dropout=0.0))
    weights = TorchSelector({k: torch.from_numpy(v) for k, v in result.weights.tensors.items()})(x, logits)
    torch.testing.assert_close(weights, torch.full_like(weights, 1 / 3))
    assert result.blend == result.uniform


def test_a_store_of_one_module_withholds_nothing() -> None:
    data = SourceLogits(
        torch.randn(8, 4), torch.randn(8, 1, 3), torch.arange(8) % 3, torch.zeros(8, dtype=torch.int64)
    )
    result = train_selector(data, data, SelectorRecipe(epochs=2))
    assert all(np.isfinite(t).all() for t in result.weights.tensors.values())


def test_ray_gives_the_same_modules(photos: Path, weights: Path, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    main(command(photos, tmp_path / "plain", weights))
    # as the other tests: jobs do not wait for all else on a busy machine
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _system_config={"worker_niceness": 0})
    try:
        assert main(command(photos, tmp_path / "ray", weights, "--ray")) == 0
    finally:
        ray.shutdown()
    plain, spread = Store(tmp_path / "plain"), Store(tmp_path / "ray")
    assert set(plain.names) == set(spread.names)
    for name in plain.names:
        for key, value in plain.load_module(name).tensors.items():
            np.testing.assert_allclose(spread.load_module(name).tensors[key], value, atol=1e-4)


def test_corrupt_writes_and_previews(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = photos / "dawn/disc/0.png"
    assert main(["corrupt", str(image), "--sheet", str(tmp_path / "sheet.png")]) == 0
    assert "15 corruptions x 5 severities" in capsys.readouterr().out
    assert (tmp_path / "sheet.png").stat().st_size > 10_000
    out = tmp_path / "out"
    more = ["--corruptions", "fog,pixelate", "--severities", "2"]
    assert main(["corrupt", str(photos / "dawn"), "--out", str(out), *more]) == 0
    assert sorted(p.name for p in out.iterdir()) == ["fog-2", "pixelate-2"]
    assert len(list(out.rglob("*.png"))) == 60 and (out / "fog-2/disc/0.png").is_file()
    for wrong in (
        ["corrupt", str(tmp_path / "absent"), "--out", str(out)],
        ["corrupt", str(image), "--out", "x", "--corruptions", "rain"],
    ):
        assert main(wrong) == 2
