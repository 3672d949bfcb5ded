"""A plan is followed where it was measured, and ignored with a word everywhere else."""

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pluto_edge import AdaptConfig, Bundle, ConfigError, Runtime
from pluto_edge.manifest import ADAPT, FORWARD
from pluto_edge.runtime.engine import plan as plans
from pluto_edge.runtime.engine import session
from pluto_edge.runtime.engine.plan import (
    DEFAULT,
    MachinePlan,
    PlanFile,
    PlanKey,
    Trial,
    find_plan,
    plan_file,
    plans_folder,
)
from pluto_edge.tolerances import LOGITS_FP32, relative_error

CPU = "CPUExecutionProvider"
PLAN = MachinePlan(threads=1, spinning=False, prepacked=(FORWARD, ADAPT), images=3, images_adapt=2)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PLUTO_EDGE_CACHE", str(tmp_path / "cache"))


def kept(bundle: Path, plan: MachinePlan = PLAN) -> Path:
    key = PlanKey.of(Bundle(bundle).hash, CPU)
    PlanFile(key, plan, (Trial("x", 0.5, True),)).write(plan_file(key))
    return plan_file(key)


def opened(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, str, str]]:
    """Of every graph that is opened from here on: threads, prepacking disabled, spinning."""
    found: dict[str, tuple[int, str, str]] = {}
    real = session.ort.InferenceSession

    def create(path: object, options: object = None, **more: object) -> object:
        made = real(path, options, **more)
        if isinstance(path, Path):
            used = made.get_session_options()
            entries = ("session.disable_prepacking", "session.intra_op.allow_spinning")
            found[path.name] = (
                used.intra_op_num_threads,
                *(used.get_session_config_entry(entry) for entry in entries),
            )
        return made

    monkeypatch.setattr(session.ort, "InferenceSession", create)
    return found


def test_without_a_plan_nothing_changes(make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = make_bundle()
    found = opened(monkeypatch)
    with Runtime(bundle, "cpu", 1) as runtime:
        assert runtime.plan == DEFAULT and runtime.learner.network.graphs.micro_batch == 64
    assert found == {"embed.onnx": (1, "1", "1"), "forward.onnx": (1, "1", "1")}


def test_a_plan_is_followed(
    make_bundle: Callable[..., Path], frames: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = make_bundle()
    config = replace(AdaptConfig.paper(), filter=False)  # every step opens the gradient graph
    with Runtime(bundle, "cpu", config=config) as plain:
        want = plain.predict(frames), plain.step(frames)
    kept(bundle)
    found = opened(monkeypatch)
    with Runtime(bundle, "cpu", config=config) as runtime:
        got = runtime.predict(frames), runtime.step(frames)
        graphs = runtime.learner.network.graphs
        assert runtime.plan == PLAN and (graphs.micro_batch, graphs.micro_batch_adapt) == (3, 2)
    assert found == {"embed.onnx": (1, "1", "0"), "forward.onnx": (1, "0", "0"), "adapt.onnx": (1, "0", "0")}
    for one, other in zip(got, want, strict=True):
        assert relative_error(one.logits, other.logits) < LOGITS_FP32
    found.clear()
    with Runtime(bundle, "cpu", threads=2) as asked, Runtime(bundle, "cpu", plan=None) as none:
        assert asked.plan == PLAN and found["forward.onnx"][1:] == ("1", "1") and none.plan == DEFAULT
    assert asked.learner.network.engine.threads == 2


def test_a_plan_in_a_file_of_ones_own(make_bundle: Callable[..., Path], tmp_path: Path) -> None:
    file = tmp_path / "state" / "plan.json"
    kept(make_bundle()).rename(tmp_path / "moved")
    file.parent.mkdir()
    (tmp_path / "moved").rename(file)
    with Runtime(make_bundle(), "cpu", 1, plan=file) as there, Runtime(make_bundle(), "cpu", 1) as not_there:
        assert there.plan == PLAN and not_there.plan == DEFAULT


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda d: d["key"].update(cpu="a CPU of last year"),
            "a plan for something else (cpu 'a CPU of last year', not",
        ),
        (lambda d: d["key"].update(onnxruntime="1.2"), "a plan for something else (onnxruntime '1.2'"),
        (lambda d: d["key"].update(bundle="0" * 64), "a plan for something else (bundle"),
        (lambda d: d["plan"].update(threads=0), "threads: want 1 to 4096"),
        (lambda d: d["plan"].update(images=10**9), "images: want 1 to 4096"),
        (lambda d: d["plan"].update(prepacked=["../x"]), "prepacked: want embed.onnx"),
        (lambda d: d["plan"].update(spinning="no"), "want bool"),
        (lambda d: d.update(schema_version=99), "newer than this pluto-edge"),
        (lambda d: d.pop("key"), "key 'key' is missing"),
    ],
)
def test_what_is_not_for_this_machine_is_ignored_with_a_word(
    make_bundle: Callable[..., Path],
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[dict[str, object]], object],
    said: str,
) -> None:
    path = kept(make_bundle())
    data = json.loads(path.read_text())
    spoil(data)
    path.write_text(json.dumps(data))
    with caplog.at_level(logging.WARNING), Runtime(make_bundle(), "cpu", 1) as runtime:
        assert runtime.plan == DEFAULT
    (record,) = caplog.records
    assert said in record.message and path.name.split("-")[0] in record.message
    assert record.message.endswith("it is ignored, and `pluto tune` measures a new plan")


@pytest.mark.parametrize("content", [b"", b"rubbish", b"[1]", b"\xff\xfe", b'{"schema_version": 1' + b"[" * 10**5])
def test_a_damaged_file_is_ignored(
    make_bundle: Callable[..., Path], caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    kept(make_bundle()).write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert find_plan(Bundle(make_bundle()).hash, CPU) == DEFAULT
    assert "not valid JSON" in caplog.text or "want a JSON object" in caplog.text


def test_a_folder_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_dir", refuse)
    assert find_plan("0" * 64, CPU) == DEFAULT
    assert "Permission denied" in caplog.text


def test_a_plan_of_before_an_upgrade_is_told_of(
    make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept(make_bundle())
    monkeypatch.setattr(plans, "VERSION", "99")
    with caplog.at_level(logging.INFO, "pluto_edge"):
        assert find_plan(Bundle(make_bundle()).hash, CPU) == DEFAULT
    assert "a plan for another CPU or version" in caplog.text


def test_where_plans_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert plans_folder() == tmp_path / "cache" / "plans"
    monkeypatch.delenv("PLUTO_EDGE_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert plans_folder() == Path("/x/pluto-edge/plans")
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    assert plans_folder() == Path("/local/pluto-edge/plans")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert plans_folder().parts[-4:] == ("Library", "Caches", "pluto-edge", "plans")


def test_a_plan_in_words() -> None:
    assert str(DEFAULT) == "as without a plan"
    assert str(PLAN) == (
        "threads: 1, threads sleep between operators, prepacked: forward.onnx, adapt.onnx, images at a time: 3, "
        "for gradients: 2"
    )
    with pytest.raises(ConfigError, match="images_adapt: want 1 to 4096"):
        replace(PLAN, images_adapt=0)


@pytest.mark.parametrize("providers", [{"backward": "OpenVINOExecutionProvider"}, {"forward": "NoSuchProvider"}])
def test_providers_that_make_no_sense(providers: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="providers: want some of embed, forward, adapt"):
        MachinePlan(providers=providers)


@pytest.mark.parametrize("asked", [None, "auto"])
def test_a_plan_decides_where_the_caller_did_not(monkeypatch: pytest.MonkeyPatch, asked: str | None) -> None:
    monkeypatch.setattr(session, "choose", lambda name: [name])
    plan = MachinePlan(providers={"forward": "OpenVINOExecutionProvider"})
    engine = session.Engine(asked)
    engine.follow(plan)
    assert engine.plan == plan and engine.provider == "OpenVINOExecutionProvider"
    assert engine.providers[FORWARD] == ["OpenVINOExecutionProvider"]
    assert engine.providers[ADAPT] == ["CPUExecutionProvider"]
    assert str(plan) == "forward on OpenVINOExecutionProvider"


def test_what_the_caller_asked_for_wins_over_a_plan(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    engine = session.Engine("cpu")
    engine.follow(MachinePlan(images=3, providers={"forward": "OpenVINOExecutionProvider"}))
    assert engine.plan == DEFAULT and engine.provider == "CPUExecutionProvider"
    assert "other providers than" in caplog.text


def test_a_plan_whose_provider_is_gone_is_not_followed(caplog: pytest.LogCaptureFixture) -> None:
    """As after OpenVINO's build of ONNX Runtime was replaced by the usual one."""
    engine = session.Engine()
    engine.follow(MachinePlan(images=3, providers={"forward": "QNNExecutionProvider"}))
    assert engine.plan == DEFAULT and engine.provider == "CPUExecutionProvider"
    assert "QNNExecutionProvider was asked for and does not load" in caplog.text and "pluto tune" in caplog.text
