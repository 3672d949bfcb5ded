"""The protocol, what is kept, and what a second run takes up."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pluto_edge.config import AdaptConfig
from pluto_edge.errors import ConfigError
from pluto_edge.evaluate import evaluation as tool
from pluto_edge.evaluate.adapters import Adapter, Bench
from pluto_edge.evaluate.evaluation import Evaluation, evaluate
from pluto_edge.evaluate.methods import choose
from pluto_edge.evaluate.norms import Tent
from pluto_edge.evaluate.pluto import Pluto
from pluto_edge.evaluate.recorded import RecordedNetwork
from pluto_edge.evaluate.results import ENSEMBLE, PROBABILITIES, Protocol, Result
from pluto_edge.evaluate.targets import TargetBatch, TargetStream, arrange, find_targets
from pluto_edge.runtime.algorithm.selector import softmax

ONLINE = Protocol(16, 2)
CLASSES = tuple(f"class-{i}" for i in range(7))
NAMES = ("single", "tent:lr=0.05", "zero-shot", "pluto")


@pytest.fixture
def run(make_network: Callable[..., RecordedNetwork], folders: Path, tmp_path: Path) -> Callable[..., Evaluation]:
    network = make_network("adapter")

    def go(
        protocol: Protocol = ONLINE,
        names: tuple[str, ...] = NAMES,
        targets: tuple[str, ...] = ("noise", "other"),
        out: str = "out",
        **more: object,
    ) -> Evaluation:
        found = find_targets(folders, targets, network.bundle.manifest.classes)
        methods = choose(names, AdaptConfig())
        return evaluate(network, found, methods, protocol, tmp_path / out, **more)  # type: ignore[arg-type]

    return go


def by_key(evaluation: Evaluation) -> dict[str, tuple[object, ...]]:
    return {r.key: (r.truth, r.predicted, r.batches, r.config) for r in evaluation.results}


def only(evaluation: Evaluation, method: str, target: str, seed: int = 0) -> Result:
    (found,) = (r for r in evaluation.results if (r.method, r.target, r.seed) == (method, target, seed))
    return found


def test_everything_is_there_once(run: Callable[..., Evaluation], tmp_path: Path) -> None:
    found = run()
    assert len(found.results) == len(NAMES) * 2 * 2 == len(list((tmp_path / "out" / "results").glob("*.json")))
    assert not found.skipped
    for r in found.results:
        assert sum(r.batches) == len(r.truth) and all(len(p) == len(r.truth) for p in r.predicted.values())
        assert sorted(r.images) == list(range(len(r.truth)))
        rows = {"domain-0", "domain-1", "domain-2", ENSEMBLE, PROBABILITIES} if r.method[0] in "st" else {"blend"}
        assert set(r.predicted) == rows
    a, b = (only(found, m, "noise").truth for m in ("single", "pluto"))
    assert a == b, "all methods see the same stream"
    assert only(found, "single", "noise", 1).truth != a


def test_the_ensembles_average_logits_and_probabilities(
    run: Callable[..., Evaluation], make_network: Callable[..., RecordedNetwork], make_stream: Callable[..., object]
) -> None:
    network = make_network("adapter")
    stream = make_stream(network, "noise")
    logits = stream.outputs.logits[arrange(stream.target.labels, "shuffled", 0)]  # type: ignore[attr-defined]
    found = only(run(names=("single",)), "single", "noise")
    assert found.predicted[ENSEMBLE] == tuple(logits.mean(axis=1).argmax(axis=1))
    assert found.predicted[PROBABILITIES] == tuple(softmax(logits).mean(axis=1).argmax(axis=1))
    assert found.predicted["domain-2"] == tuple(logits[:, 2].argmax(axis=1))


def test_a_loud_module_against_two_that_agree(
    run: Callable[..., Evaluation], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits go to the loud one, probabilities to the two."""

    class Says(Spy):
        def __init__(self, bench: Bench, module: str, config: object) -> None:
            self.learned, self.says = 0, np.eye(7)[0] * 9 if module == "domain-0" else np.eye(7)[1] * 3

        def predict(self, batch: TargetBatch) -> np.ndarray:
            return np.tile(self.says, (len(batch), 1))

    monkeypatch.setattr("pluto_edge.evaluate.methods.Single", Says)
    (found,) = run(Protocol(16, 1), ("single",), ("other",)).results
    assert set(found.predicted[ENSEMBLE]) == {0} and set(found.predicted[PROBABILITIES]) == {1}


def test_a_second_run_computes_nothing(run: Callable[..., Evaluation], monkeypatch: pytest.MonkeyPatch) -> None:
    first = run()
    monkeypatch.setattr(tool, "_Run", lambda *_: pytest.fail("it was computed again"))
    monkeypatch.setattr(tool, "prepare", lambda *_: pytest.fail("images were read again"))
    assert by_key(run()) == by_key(first)


def test_killed_between_results(run: Callable[..., Evaluation], tmp_path: Path) -> None:
    """An interrupt leaves whole results and no half ones; the next run does the rest."""
    stopped = []

    def interrupt(done: float, total: float, text: str) -> None:
        if text.startswith("pluto on noise, seed 0"):
            stopped.append(done / total)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(progress=interrupt)
    kept = {p.name: p.read_bytes() for p in (tmp_path / "out" / "results").iterdir()}
    assert len(kept) == 3 and 0 < stopped[0] < 1
    resumed = run()
    assert all((tmp_path / "out" / "results" / n).read_bytes() == data for n, data in kept.items())
    assert by_key(resumed) == by_key(run(out="again"))


def test_what_changes_a_result_changes_its_key(run: Callable[..., Evaluation]) -> None:
    keys = [
        {r.key for r in run(protocol, names, ("noise",)).results}
        for protocol, names in [
            (Protocol(16, 1), ("tent",)),
            (Protocol(8, 1), ("tent",)),
            (Protocol(16, 1, shots=16), ("tent",)),
            (Protocol(16, 1, order="classes"), ("tent",)),
            (Protocol(16, 1), ("tent:lr=0.01",)),
        ]
    ]
    assert len(set.union(*keys)) == 5
    assert keys[0] < {r.key for r in run(ONLINE, ("tent",), ("noise",)).results}, "more seeds keep the first"


def test_progress_ends_at_all(run: Callable[..., Evaluation]) -> None:
    seen: list[tuple[float, float]] = []
    run(progress=lambda done, total, text: seen.append((done, total)))
    done, total = np.array(seen).T
    assert (np.diff(done) >= 0).all() and np.ptp(total) < 1e-6 and done[-1] == pytest.approx(total[-1])


class Spy(Adapter):
    """Predicts how many images it has learned from."""

    def __init__(self, *_: object) -> None:
        self.learned = 0

    def step(self, batch: TargetBatch) -> np.ndarray:
        logits = self.predict(batch)
        self.learned += len(batch)
        return logits

    def predict(self, batch: TargetBatch) -> np.ndarray:
        return np.tile(np.eye(100)[self.learned], (len(batch), 1))


@pytest.mark.parametrize(
    "protocol, want",
    [
        (Protocol(16, 1), [0] * 16 + [16] * 8),
        (Protocol(16, 1, shots=0), [0] * 24),
        (Protocol(16, 1, shots=4), [4] * 20),
        (Protocol(16, 1, shots=20), [20] * 4),
    ],
)
def test_who_learns_when(
    run: Callable[..., Evaluation], monkeypatch: pytest.MonkeyPatch, protocol: Protocol, want: list[int]
) -> None:
    monkeypatch.setattr("pluto_edge.evaluate.methods.Pluto", Spy)
    (found,) = run(protocol, ("pluto",), ("other",)).results
    assert found.predicted["blend"] == tuple(want)
    assert len(set(found.images)) == len(want)


@pytest.mark.parametrize("continual", [False, True])
def test_continual_takes_state_along(
    run: Callable[..., Evaluation], monkeypatch: pytest.MonkeyPatch, continual: bool
) -> None:
    monkeypatch.setattr("pluto_edge.evaluate.methods.Pluto", Spy)
    found = run(Protocol(60, 1, continual=continual), ("pluto",))
    assert only(found, "pluto", "other").predicted["blend"][0] == (60 if continual else 0)


def test_continual_keys_know_the_past(run: Callable[..., Evaluation]) -> None:
    protocol = Protocol(16, 1, continual=True)
    first = run(protocol, ("tent",), ("noise", "other"))
    other_way = run(protocol, ("tent",), ("other", "noise"))
    assert only(first, "tent", "other").key != only(other_way, "tent", "other").key
    alone = run(protocol, ("tent",), ("noise",))
    assert only(first, "tent", "noise").key == only(alone, "tent", "noise").key


def test_shots_set_the_rate(run: Callable[..., Evaluation], monkeypatch: pytest.MonkeyPatch) -> None:
    rates = []
    original = Tent.step

    def spy(self: Tent, batch: TargetBatch) -> object:
        rates.append(self.lr)
        return original(self, batch)

    monkeypatch.setattr(Tent, "step", spy)
    run(Protocol(64, 1, shots=16), ("tent",), ("noise",))
    assert set(rates) == {0.001 / 4}


def test_fisher_sources(run: Callable[..., Evaluation], folders: Path) -> None:
    (source,) = find_targets(folders, ["source"], CLASSES, limit=4)
    named = [type(source)(f"domain-{i}", source.files, source.labels, source.digest) for i in range(3)]
    name = "eata:e_margin=1,d_margin=1"
    (with_source,) = run(Protocol(16, 1), (name,), ("other",), sources=named).results
    (without,) = run(Protocol(16, 1), (name,), ("other",)).results
    assert with_source.key != without.key
    counts = [r.notes["steps held by Fisher"] for r in (with_source, without)]
    assert counts == [3 * 2, 0], "three modules, two batches"


def test_cotta_without_a_store_is_skipped(run: Callable[..., Evaluation]) -> None:
    found = run(Protocol(16, 1), ("single", "cotta"), ("other",))
    assert {r.method for r in found.results} == {"single"} and "--store" in found.skipped["cotta"]
    with pytest.raises(ConfigError, match=r"none of the methods can run\. cotta: it changes the backbone"):
        run(Protocol(16, 1), ("cotta",), ("other",))


@pytest.mark.parametrize(
    "values, what",
    [
        ({"batch": 0}, "batch: want at least 1, got 0"),
        ({"seeds": 0}, "seeds"),
        ({"shots": -1}, "shots: want 0 or more"),
        ({"shots": 4, "continual": True}, "starts anew"),
    ],
)
def test_wrong_protocols(values: dict[str, int], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Protocol(**values)  # type: ignore[arg-type]


def test_more_shots_than_images(run: Callable[..., Evaluation]) -> None:
    with pytest.raises(ConfigError, match="24 images leave none after 24 shots"):
        run(Protocol(16, 1, shots=24), ("single",), ("other",))


def test_a_damaged_result_is_named(run: Callable[..., Evaluation], tmp_path: Path) -> None:
    run(names=("single",))
    file = next((tmp_path / "out" / "results").iterdir())
    file.write_text(json.dumps({"schema_version": 1}))
    with pytest.raises(ConfigError, match="key 'key' is missing"):
        run(names=("single",))


def test_what_modules_still_know(run: Callable[..., Evaluation], folders: Path, tmp_path: Path) -> None:
    """After every target each adapted module, alone, on its own domain; those that learn nothing keep all."""
    (probe,) = find_targets(folders, ["source"], CLASSES)
    probes = [replace(probe, name=f"domain-{i}") for i in (0, 2)]
    protocol = Protocol(16, 1, continual=True)
    found = run(protocol, ("single", "tent:lr=1", "pluto:selector=false,top_m=1", "zero-shot"), probes=probes)
    exported = only(found, "single", "noise").kept
    assert set(exported) == {"domain-0", "domain-2"}
    for target in ("noise", "other"):
        assert only(found, "zero-shot", target).kept == only(found, "single", target).kept == exported
    assert only(found, "tent:lr=1", "other").kept != exported, "such a rate forgets"
    assert {r.key for r in found.results}.isdisjoint(r.key for r in run(protocol, ("single", "zero-shot")).results)
    with pytest.raises(ConfigError, match="no module has that name"):
        run(protocol, ("single",), probes=[probe])


def test_what_plutos_modules_know_alone(
    make_network: Callable[..., RecordedNetwork], make_stream: Callable[..., TargetStream]
) -> None:
    network = make_network("adapter")
    stream = make_stream(network, "noise")
    adapter = Pluto(Bench(network, 16), "", AdaptConfig(ln_lr=0.1, filter=False, guard=False))
    first, second = list(stream.batches(np.arange(32), 16))
    adapter.step(first)
    (name,) = adapter.learner.state.affines
    for module in network.modules:
        learned = network.logits(second, module, adapter.learner.state.affines.get(module))
        assert np.array_equal(adapter.alone(second, module), learned)
    assert not np.array_equal(adapter.alone(second, name), network.logits(second, name, None))


def test_notes_are_by_target(run: Callable[..., Evaluation]) -> None:
    """In a continual run each result counts its own target only."""
    found = run(Protocol(16, 1, continual=True), ("sar:recovery=5,e_margin=1",))
    resets = [only(found, "sar:recovery=5,e_margin=1", t).notes["resets"] for t in ("noise", "other")]
    assert resets == [3 * 4, 3 * 2], "three modules, every batch"
