"""benchmarks/rivals.py: both sides do the same, the rows are there, and what cannot be compared is refused."""

import json
import os
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from time import sleep

import contestants
import numpy as np
import pytest
import rivals
import torch
from contest import RATIOS, ContestRow, compare, in_turns
from kept import Kept
from PIL import Image
from torch_rival import time_limit

from pluto_edge import AdaptConfig
from pluto_edge._cpu import this_cpu
from pluto_edge.bench import machine
from pluto_edge.bench.workload import steady
from pluto_edge.errors import BundleError
from pluto_edge.manifest import Bundle
from pluto_edge.runtime.engine.plan import MachinePlan, PlanFile, PlanKey
from pluto_edge.store import Store
from pluto_edge.tolerances import GRADIENT, LOGITS_FP16, LOGITS_INT8, TRAJECTORY_LOGITS, relative_error
from tests.bench.conftest import calm
from tests.reference.torch_pluto import ReliableOnly, TorchPluto

BATCH = 6
OPTIONS = Namespace(batch=BATCH, repeats=1, threads=1, compile=0.0, tune=False, groups=",".join(contestants.GROUPS))


@pytest.fixture(autouse=True)
def quick_but_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    calm(monkeypatch)
    monkeypatch.setattr(machine, "load_average", lambda: 1e3)


def test_the_command(
    make_store: Callable[..., Store],
    make_bundle: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found, picture = tmp_path / "rivals.json", tmp_path / "rivals.png"
    bundles = [str(make_bundle(precision=precision)) for precision in ("fp32", "int8")]
    arguments = [str(make_store().path), *bundles, "--batch", str(BATCH), "--repeats", "1", "--threads", "1"]
    arguments += ["--compile", "0", "--no-tune"]
    assert rivals.main([*arguments, "--json", str(found), "--plot", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "warning: the machine is busy, ratios may be off: before: the load average was" in out
    assert Image.open(BytesIO(picture.read_bytes())).size == (1200, 504)

    report = json.loads(found.read_text())
    assert report["cpu"]["model"] == this_cpu().model and str(this_cpu()) in out
    assert report["plans"] == dict.fromkeys(("pluto-edge fp32", "pluto-edge int8"), "as without a plan")
    exact, rough = report["agreements"]
    assert exact["error"] < TRAJECTORY_LOGITS and exact["same_top"] and rough["error"] < LOGITS_INT8
    sides: dict[str, list[str]] = {}
    for row in report["rows"]:
        sides.setdefault(row["what"], []).append(row["who"])
        assert row["median"] == row["values"][0] and row["ratio"] is not None and row["note"] == ""
    ours, added = ["pluto-edge fp32", "pluto-edge int8"], "resident memory added, pluto-edge "
    sessions = ["plain session", "plain session, prepacked"]
    assert sides == {
        "step: every image reliable": [*ours, "torch"],
        "step: half reliable": [*ours, "torch", "torch, reliable only"],
        "forward, one module": [*ours, "torch", "torch, 64 at a time", *sessions],
        "peak resident memory of steps, without the images": [*ours, "torch"],
        "from nothing to the first prediction": [*ours, "torch"],
        f"{added}fp32": sides[f"{added}fp32"],
        f"{added}int8": sides[f"{added}fp32"],
    }
    assert len(sides[f"{added}fp32"]) == 4
    reliable = {
        (r["what"].partition(": ")[2], r["who"]): r["reliable"]
        for r in report["rows"]
        if r["reliable"] is not None and "int8" not in r["who"]
    }
    assert set(reliable.values()) == {BATCH, BATCH // 2}
    assert all((count == BATCH // 2) == (what == "half reliable") for (what, _), count in reliable.items())


@pytest.mark.parametrize("other", ["modules", "weights"])
def test_a_bundle_of_another_store_is_refused(
    make_store: Callable[..., Store],
    make_bundle: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    other: str,
) -> None:
    store = make_store(modules=2)
    if other == "weights":
        from tests.conftest import tiny_store

        store = tiny_store(tmp_path / "store", seed=1)
    assert rivals.main([str(store.path), str(make_bundle())]) == 2
    said = capsys.readouterr().err
    assert "not exported from" in said and "pluto-export --modules" in said
    assert "modules differ" in said if other == "modules" else "modules' weights and selector differ" in said


def test_what_does_not_compute_the_same_is_not_timed(
    make_store: Callable[..., Store], make_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    sides = contestants.Contestants(
        make_store(), [contestants.Entrant.parse(str(make_bundle()))], OPTIONS, Kept(tmp_path)
    )
    sides.torch.modules["domain-0"]["head_bias"] = sides.torch.modules["domain-0"]["head_bias"] + 1
    with pytest.raises(contestants.ParityError, match="nothing was timed: logits differ"):
        sides.report()


def test_an_entrant_is_a_bundle_and_a_provider(make_bundle: Callable[..., Path]) -> None:
    bundle = make_bundle()
    plain, other = (contestants.Entrant.parse(f"{bundle}{at}") for at in ("", "@openvino-bf16"))
    assert plain.bundle.hash == other.bundle.hash and (plain.providers, other.providers) == ("cpu", "openvino-bf16")
    assert contestants.labels([plain, other]) == ["pluto-edge fp32", "pluto-edge fp32, openvino-bf16"]
    twice = contestants.labels([plain, plain])
    assert twice == [f"pluto-edge fp32 ({bundle})"] * 2
    assert plain.exact and not plain.in_bfloat16


def test_torch_rounds_to_bfloat16(make_store: Callable[..., Store], frames: np.ndarray) -> None:
    config = steady(AdaptConfig.paper())
    exact, rounded = (TorchPluto(make_store(), config) for _ in range(2))
    error = relative_error(contestants.InBfloat16(rounded).step(frames)["logits"], exact.step(frames)["logits"])
    assert TRAJECTORY_LOGITS < error < LOGITS_FP16


def test_a_compiler_that_fails_is_a_row(
    make_store: Callable[..., Store],
    make_bundle: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    class Broken(TorchPluto):
        def step(self, images: np.ndarray) -> dict[str, object]:
            raise RuntimeError("no compiler\nand a long story")

    monkeypatch.setattr(contestants, "compiled", Broken)
    options = Namespace(**{**vars(OPTIONS), "compile": 9.0, "groups": "steps,half"})
    report = contestants.Contestants(
        make_store(), [contestants.Entrant.parse(str(make_bundle()))], options, Kept(tmp_path)
    ).report()
    rows = [row for row in report.rows if row.who == "torch.compile"]
    assert len(rows) == 2 and {row.median for row in rows} == {None}
    assert {row.note for row in rows} == {"did not work: RuntimeError: no compiler"}


def test_it_goes_on_where_it_ended(
    make_store: Callable[..., Store],
    make_bundle: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A plan is measured once, and so is every group; what the rows depend on is part of their name."""
    tuned: list[str] = []

    def plan(bundle: Bundle, providers: str) -> PlanFile:
        tuned.append(bundle.manifest.precision)
        return PlanFile(PlanKey.of(bundle.hash, "CPUExecutionProvider"), MachinePlan(images=3))

    def interrupted(self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(contestants.tune, "tune", plan)
    arguments = [str(make_store().path), str(make_bundle()), "--batch", str(BATCH), "--repeats", "1"]
    arguments += ["--threads", "1", "--compile", "0", "--groups", "forward,start", "--keep", str(tmp_path / "keep")]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(contestants.Contestants, "start", interrupted)
        rivals.main(arguments)
    (first,) = (tmp_path / "keep").glob("forward-*.json")
    written = first.stat().st_mtime_ns
    assert rivals.main(arguments) == 0 and tuned == ["fp32"]
    out = capsys.readouterr().out
    assert "pluto-edge fp32, no plan" in out and "images at a time: 3" in out
    assert first.stat().st_mtime_ns == written and len(list((tmp_path / "keep").glob("start-*.json"))) == 1
    assert rivals.main([*arguments, "--batch", "4"]) == 0
    assert len(list((tmp_path / "keep").glob("forward-*.json"))) == 2
    assert rivals.main([*arguments, "--groups", "backward"]) == 2
    assert "--groups: want some of steps, half" in capsys.readouterr().err
    assert "PLUTO_EDGE_CACHE" in os.environ and not (Path(os.environ["PLUTO_EDGE_CACHE"]) / "plans").exists()


def test_the_table_of_ratios() -> None:
    def rows(what: str, **sides: list[float]) -> list[ContestRow]:
        return [ContestRow(what, 1, who, "ms", tuple(v)) for who, v in sides.items()]

    found = (
        *rows("step: every image reliable", **{"pluto-edge int8": [1, 1], "torch": [9, 3]}),
        *rows("forward, one module", **{"pluto-edge fp32": [1, 2, 4], "torch": [2, 2, 2]}),
        *rows("from nothing to the first prediction", **{"pluto-edge fp32": [1], "torch": [8]}),
    )
    said = [ratio.of(found) for ratio in RATIOS]
    assert said == ["1.00", "-", "-", "6.00", "-", "-", "-", "1/8.0"]


def test_a_compiler_that_takes_too_long_is_stopped() -> None:
    with pytest.raises(TimeoutError, match=r"not ready after 0\.01 s"), time_limit(0.01):
        sleep(60)


def test_reliable_only_is_the_same_step(make_store: Callable[..., Store], frames: np.ndarray) -> None:
    store = make_store()
    entropy = TorchPluto(store, AdaptConfig(sam=None)).step(frames)["entropy"]
    margin = float(np.sort(entropy)[3:5].mean() / np.log(len(store.config.classes)))
    config = AdaptConfig(entropy_margin=margin, ln_lr=0.05)
    start, whole, part = (kind(store, config) for kind in (TorchPluto, TorchPluto, ReliableOnly))
    want, got = whole.step(frames), part.step(frames)
    assert whole.reliable == part.reliable == 4
    for key in ("ln_scale", "ln_bias"):
        before, after, same = (side.modules[want["top"]][key] for side in (start, whole, part))
        assert not torch.equal(after, before)
        assert relative_error(same - before, after - before) < GRADIENT
    assert got["top"] == want["top"]
    none = ReliableOnly(store, replace(config, entropy_margin=1e-9))
    none.step(frames)
    assert none.reliable == 0


def test_torch_is_not_held_back(make_store: Callable[..., Store]) -> None:
    vit = TorchPluto(make_store(), AdaptConfig()).vit.vit
    assert not any(parameter.requires_grad for parameter in vit.parameters())  # or autograd would want more
    assert all(block.attn.fused_attn for block in vit.blocks) and not vit.training


def test_sides_take_turns_and_ratios_are_of_rounds() -> None:
    order: list[str] = []

    def side(name: str, values: list[float]) -> Callable[[], float]:
        waiting = iter(values)
        return lambda: order.append(name) or next(waiting)  # type: ignore[func-returns-value]

    sides = {"a": side("a", [9, 1, 2, 4]), "b": side("b", [9, 3, 4, 16])}
    values = in_turns("x", sides, rounds=3, warm_up=1)
    assert order == list("ab" * 4)
    first, second = compare("x", 1, "ms", values, notes={"b": "slow"})
    assert (first.median, first.ratio, first.spread) == (2, 1, 1.5)
    assert (second.median, second.ratio, second.note) == (4, 3, "slow")  # 3, 2 and 4 times as long


def test_fp16_is_refused(make_store: Callable[..., Store], make_bundle: Callable[..., Path]) -> None:
    with pytest.raises(BundleError, match="fp16 is for CUDA"):
        contestants.check_belongs(Bundle(make_bundle(precision="fp16")), make_store())
