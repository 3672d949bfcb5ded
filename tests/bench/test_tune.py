"""`pluto tune`: what is used without a plan stays unless something is clearly faster. No test looks at a time."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pluto_edge import BundleError, ConfigError, Runtime
from pluto_edge.bench import machine, track
from pluto_edge.bench import tune as module
from pluto_edge.bench.track import Track
from pluto_edge.bench.tune import choose, tune
from pluto_edge.cli import main
from pluto_edge.manifest import ADAPT, EMBED, FORWARD, Bundle
from pluto_edge.runtime.engine.plan import DEFAULT, MachinePlan
from pluto_edge.runtime.engine.providers import CPU
from pluto_edge.runtime.engine.session import Engine, Graph, Tensor
from tests.bench.conftest import calm

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calm(monkeypatch)
    monkeypatch.setattr(track, "LEAST", 0.0)
    monkeypatch.setattr(module, "usable_cores", lambda: 4)
    monkeypatch.setenv("PLUTO_EDGE_CACHE", str(tmp_path / "cache"))


def says(*seconds: float) -> Callable[[], float]:
    """A way that takes these seconds, one after the other; the first does not count."""
    waiting: Iterator[float] = iter((9.0, *seconds))
    return lambda: next(waiting)


@pytest.mark.parametrize(
    ("other", "best"),
    [
        ((0.5, 0.5, 0.5, 0.5, 0.5), "b"),
        ((0.98, 0.98, 0.98, 0.98, 0.98), "a"),  # within the margin
        ((0.1, 0.1, 1.2, 1.2, 0.1), "a"),  # ahead in too few rounds
        ((1, 1, 1, 1, 1), "a"),
    ],
)
def test_only_what_is_clearly_faster_is_chosen(other: tuple[float, ...], best: str) -> None:
    found, (trial,) = choose("a", {"a": says(1, 1, 1, 1, 1), "b": says(*other)}, 5)
    assert found == best and trial.what == "b" and trial.taken == (best == "b")
    assert trial.ratio == sorted(other)[2]


def test_the_fastest_of_several_and_none_goes_on_without_hope() -> None:
    ways = {"a": says(2, 2, 2, 2, 2), "b": says(1.5, 1.5, 1.5, 1.5, 1.5), "c": says(1, 1, 1, 1, 1)}
    found, trials = choose("a", {**ways, "d": says(3, 3, 3)}, 5)  # a fourth call of d would raise
    assert found == "c" and {t.what: (t.ratio, t.taken) for t in trials} == {
        "b": (0.75, False),
        "c": (0.5, True),
        "d": (1.5, False),
    }


def faked(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[str, MachinePlan], float]) -> None:
    monkeypatch.setattr(Track, "way", lambda self, graph, plan: lambda: seconds(graph, plan))


def test_what_was_used_before_stays_where_nothing_is_faster(
    make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    faked(monkeypatch, lambda graph, plan: 1.0)
    found = tune(Bundle(make_bundle()), "cpu")
    assert found.plan == DEFAULT and found.trials and not any(t.taken for t in found.trials)


def test_every_choice_is_measured_and_kept(
    make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def seconds(graph: str, plan: MachinePlan) -> float:
        spent = 1.0 if plan.threads == 2 else 1.5
        spent *= 0.8 if graph in plan.prepacked else 1.0
        asked = plan.images if graph == FORWARD else plan.images_adapt
        return spent * (0.7 if asked == (32 if graph == FORWARD else 48) else 1.0)

    faked(monkeypatch, seconds)
    bundle = Bundle(make_bundle())
    found = tune(bundle, "cpu")
    assert found.plan == MachinePlan(threads=2, prepacked=(FORWARD, ADAPT), images=32, images_adapt=48)
    assert found.key.bundle == bundle.hash and found.key.provider == "CPUExecutionProvider"
    assert {t.what: round(t.ratio, 2) for t in found.trials if t.taken} == {
        "threads: half as many (2)": 0.67,
        f"{FORWARD}, weights: prepacked": 0.8,
        f"{ADAPT}, weights: prepacked": 0.8,
        f"{FORWARD}, images at a time: 32": 0.7,
        f"{ADAPT}, images at a time: 48": 0.7,
        f"{FORWARD}: the whole plan": 0.37,
        f"{ADAPT}: the whole plan": 0.37,
    }
    assert tune(bundle, "cpu", lean=True).plan == MachinePlan(threads=2, images=32, images_adapt=48)


def test_a_plan_that_is_slower_as_a_whole_is_dropped(
    make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads are chosen by `forward`; where they make the gradient slower, there is no plan."""
    faked(monkeypatch, lambda graph, plan: 1.0 if (plan.threads == 2) == (graph == FORWARD) else 2.0)
    found = tune(Bundle(make_bundle()), "cpu")
    assert found.plan == DEFAULT
    assert [(t.what, t.ratio, t.taken) for t in found.trials[-2:]] == [
        (f"{FORWARD}: the whole plan", 0.5, False),
        (f"{ADAPT}: the whole plan", 2.0, False),
    ]


def test_on_a_busy_machine_threads_stay(make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "load_average", lambda: 99.0)
    opened: list[int] = []
    real = Track._engine
    monkeypatch.setattr(
        Track, "_engine", lambda self, plan: opened.append(real(self, plan).threads) or real(self, plan)
    )
    found = tune(Bundle(make_bundle()), "cpu", rounds=3)
    assert set(opened) == {1} and "load average was 99.0" in found.busy[0]
    assert found.plan.threads is None and found.plan.spinning
    assert not [t for t in found.trials if t.what.startswith("threads")]


def test_the_command(make_bundle: Callable[..., Path], tmp_path: Path, capsys: Capture) -> None:
    bundle = str(make_bundle())
    assert main(["tune", bundle, "--rounds", "3", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    (file,) = (tmp_path / "cache/plans").glob("*.json")
    assert json.loads(file.read_text()) == said and said["trials"]
    with Runtime(bundle, "cpu") as runtime:
        assert runtime.plan.images == said["plan"]["images"]
    assert main(["doctor"]) == 0
    assert str(file) in capsys.readouterr().out
    assert main(["tune", bundle, "--forget"]) == 0
    assert f"{file}: deleted" in capsys.readouterr().out and not file.exists()
    assert main(["tune", bundle, "--forget"]) == 0
    assert "there is none" in capsys.readouterr().out
    assert main(["doctor"]) == 0
    assert "`pluto tune BUNDLE` measures" in capsys.readouterr().out


def test_a_file_of_ones_own(make_bundle: Callable[..., Path], tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "state" / "plan.json"
    command = ["tune", str(make_bundle()), "--rounds", "3", "--out", str(out)]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert str(out) in text and "prepacked" in text and not (tmp_path / "cache/plans").exists()
    assert main(command) == 2 and "--force" in capsys.readouterr().err
    assert main([*command, "--force"]) == 0


def test_plans_that_are_not_used_are_told_of(
    make_bundle: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    assert main(["tune", str(make_bundle()), "--rounds", "3"]) == 0
    (file,) = (tmp_path / "cache/plans").glob("*.json")
    data = json.loads(file.read_text())
    data["key"]["cpu"] = "another"
    file.write_text(json.dumps(data))
    (file.parent / "rubbish.json").write_text("rubbish")
    capsys.readouterr()
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "not used here: cpu 'another'" in text and "not used: " in text and "not valid JSON" in text


def test_too_few_rounds(make_bundle: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match="rounds: want at least 3, got 2"):
        tune(Bundle(make_bundle()), rounds=2)


OPENVINO = "OpenVINOExecutionProvider"


def as_if_installed(monkeypatch: pytest.MonkeyPatch, disagreement: str = "") -> None:
    """OpenVINO's place is taken by the CPU under its name; `disagreement` is what is wrong with its numbers."""
    monkeypatch.setattr(module, "there", lambda: [OPENVINO, CPU, "AzureExecutionProvider"])
    monkeypatch.setattr(module, "loads", lambda provider: "")
    monkeypatch.setattr(Track, "disagreement", lambda self, graph, plan: disagreement if graph == ADAPT else "")


def on(plan: MachinePlan, graph: str) -> str:
    return plan.providers.get(graph.removesuffix(".onnx"), CPU)


def test_each_graph_gets_the_provider_that_is_fastest_for_it(
    make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_if_installed(monkeypatch)
    best = {EMBED: CPU, FORWARD: OPENVINO, ADAPT: OPENVINO}
    faked(monkeypatch, lambda graph, plan: 0.5 if on(plan, graph) == best[graph] else 1.0)
    found = tune(Bundle(make_bundle()))
    assert found.plan == MachinePlan(providers={"forward": OPENVINO, "adapt": OPENVINO})
    measured = [t.what for t in found.trials]
    assert f"{EMBED}, provider: {OPENVINO}" in measured
    assert not [what for what in measured if "Azure" in what or "prepacked" in what]


@pytest.mark.parametrize("providers", ["cpu", ["CPUExecutionProvider"]])
def test_a_provider_that_was_asked_for_is_the_only_one(
    make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, providers: str | list[str]
) -> None:
    as_if_installed(monkeypatch)
    faked(monkeypatch, lambda graph, plan: 0.5 if plan.providers else 1.0)
    assert tune(Bundle(make_bundle()), providers).plan == DEFAULT


def test_an_int8_bundle_stays_on_the_cpu(make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    as_if_installed(monkeypatch)
    faked(monkeypatch, lambda graph, plan: 0.5 if plan.providers else 1.0)
    assert tune(Bundle(make_bundle(precision="int8"))).plan == DEFAULT


def test_a_provider_with_wrong_gradients_is_not_tried(
    make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    as_if_installed(monkeypatch, "ln_bias_grad differs by 3e-02, tolerance 1e-04")
    faked(monkeypatch, lambda graph, plan: 0.5 if on(plan, graph) == OPENVINO else 1.0)
    found = tune(Bundle(make_bundle()))
    assert found.plan.providers == {"embed": OPENVINO, "forward": OPENVINO}
    assert f"{ADAPT} is not tried on {OPENVINO}: ln_bias_grad differs by 3e-02" in caplog.text


def test_another_provider_is_held_against_the_cpu(
    make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By every output of the graph; here the other one is the CPU itself, with one output made wrong."""
    ours = Track(Bundle(make_bundle()), "cpu", alone=True)
    other = MachinePlan(spinning=False)
    for graph in (EMBED, FORWARD, ADAPT):
        assert ours.disagreement(graph, other) == ""
    opened = ours._opened(ADAPT, other)
    real = type(opened.graph).__call__

    def wrong(self: Graph, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        out = real(self, inputs)
        if self is opened.graph:
            out["ln_bias_grad"] = opened.engine.tensor(1.01 * out["ln_bias_grad"].numpy())
        return out

    monkeypatch.setattr(Graph, "__call__", wrong)
    assert "ln_bias_grad differs by 1e-02, tolerance 1e-04" in ours.disagreement(ADAPT, other)


def test_a_graph_that_does_not_open_elsewhere_stays(
    make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Track(Bundle(make_bundle()), "cpu", alone=True)

    def refuse(self: Engine, *arguments: object, **more: object) -> Graph:
        raise BundleError("ONNX Runtime cannot load this graph")

    monkeypatch.setattr(Engine, "open", refuse)
    assert "cannot load this graph" in ours.disagreement(ADAPT, MachinePlan(threads=1))
