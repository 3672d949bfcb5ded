"""A module on trial changes nothing until it has won; then it takes part, and one that does not win is dropped."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pluto_edge import AdaptConfig, Runtime, Stream
from pluto_edge._files import write_tensors, write_text
from pluto_edge._schema import to_text
from pluto_edge.errors import ConfigError, StoreError
from pluto_edge.runtime.stream.trial import Rules, Trials
from pluto_edge.store import MODULE_FILE, read_module, read_module_config
from tests.digits import MODULES, device, draw

BATCH = 32


def feed(stream: Stream, condition: str, count: int, seed: int = 0) -> list[np.ndarray]:
    return [stream(image).logits for image in draw(condition, count, seed)[0]]


def open_stream(runtime: Runtime, **options: object) -> Stream:
    stream = runtime.stream(batch=BATCH, background=False, **options)
    stream.trials.rules = Rules(every=2, least=24, patience=3 * BATCH)
    return stream


def reasons(stream: Stream, kind: str) -> list[str]:
    return [e.reason for e in stream.events if e.kind == kind]


def changed(folder: Path, name: str, out: Path, **tensors: np.ndarray) -> Path:
    """A module folder with another name, and some other tensors."""
    config = read_module_config(folder)
    module = read_module(folder, config)
    out.mkdir(parents=True)
    write_tensors(out / MODULE_FILE, {**module.tensors, **tensors})
    write_text(out / "adapter_config.json", to_text(replace(config, name=name)))
    return out


def test_nothing_changes_until_it_wins_and_then_it_leads() -> None:
    with device("fog") as alone, device("fog") as trying:
        plain, stream = open_stream(alone), open_stream(trying)
        ended = []
        assert stream.try_module(MODULES / "fog", lambda *said: ended.append(said)) == "fog"
        assert stream.trials.names == ("fog",)
        for _ in range(2):  # the trial is judged in the step that the last frame is due to
            before = trying.modules
            for a, b in zip(feed(plain, "fog", BATCH), feed(stream, "fog", BATCH), strict=True):
                np.testing.assert_array_equal(a, b)
            assert "fog" not in before
        assert trying.modules[-1] == "fog" and stream.trials.names == ()
        assert ended == [("fog", True, "it won its trial")]
        first, one, two = reasons(stream, "trial")
        assert first == "fog is on trial" and "16 images" in one and "32 images" in two
        assert reasons(stream, "module") == ["fog was added: it won its trial"]
        assert trying.events[-1].reason == "fog was added: it won its trial"  # all learners are told
        feed(stream, "fog", 8)
        assert stream.timeline[-1].weights[trying.modules.index("fog")] > 0.5
        assert plain.learner.state.steps == stream.learner.state.steps


def test_what_was_learned_is_the_same_beside_a_trial() -> None:
    """Of a module that never wins: bit for bit, state and all."""
    with device("fog") as alone, device("fog") as trying:
        plain, stream = open_stream(alone), open_stream(trying)
        stream.try_module(MODULES / "fog")
        for condition in ("clear", "frost"):
            for a, b in zip(feed(plain, condition, 80), feed(stream, condition, 80), strict=True):
                np.testing.assert_array_equal(a, b)
        a, b = plain.learner.state, stream.learner.state
        assert a.affines.keys() == b.affines.keys() and a.affines
        for name, affines in a.affines.items():
            assert affines.digest == b.affines[name].digest
        assert "fog" not in trying.modules and stream.trials.names == ()
        assert "fog was dropped: 0% of the say on" in reasons(stream, "trial")[-1]
        assert reasons(stream, "change") == reasons(plain, "change") != []


def test_evidence_is_of_one_domain() -> None:
    with device("fog") as runtime:
        stream = open_stream(runtime)
        stream.trials.rules = replace(stream.trials.rules, patience=10_000)
        stream.try_module(MODULES / "fog")
        feed(stream, "clear", 4 * BATCH)
        assert "64 images" in reasons(stream, "trial")[-1]
        feed(stream, "fog", 6 * BATCH)  # frames of clear do not speak against it any more
        assert "fog" in runtime.modules


def test_one_that_contradicts_what_is_sure_does_not_join(tmp_path: Path) -> None:
    module = read_module(MODULES / "fog", read_module_config(MODULES / "fog"))
    turned = np.roll(module.tensors["head_weight"], 1, axis=0)
    bias = np.roll(module.tensors["head_bias"], 1, axis=0)
    folder = changed(MODULES / "fog", "liar", tmp_path / "liar", head_weight=turned, head_bias=bias)
    with device("fog") as runtime:
        stream = open_stream(runtime)
        stream.try_module(folder)
        feed(stream, "fog", 4 * BATCH)
        assert "liar" not in runtime.modules
        assert "liar was dropped" in reasons(stream, "trial")[-1]


def test_one_that_says_one_class_of_everything_does_not_join(tmp_path: Path) -> None:
    """Its features are not where they should be for that class: it loses its say at once."""
    bias = np.zeros(10, np.float32)
    bias[3] = 100.0
    folder = changed(MODULES / "fog", "stuck", tmp_path / "stuck", head_bias=bias)
    with device("fog") as runtime:
        stream = open_stream(runtime)
        stream.trials.rules = replace(stream.trials.rules, agreement=0.0, share=0.0)
        stream.try_module(folder)
        feed(stream, "fog", 4 * BATCH)
        assert "stuck" not in runtime.modules
        assert "stuck was dropped" in reasons(stream, "trial")[-1]


def test_one_that_has_collapsed_does_not_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trials, "_labels", lambda *_: ([3] * 40, list(range(10)) * 4))
    with device("fog") as runtime:
        stream = open_stream(runtime)
        stream.try_module(MODULES / "fog")
        feed(stream, "fog", 3 * BATCH)
        assert "fog" not in runtime.modules
        assert "it says 1.0 classes where the stream says 10.0" in reasons(stream, "trial")[-1]


def test_one_that_is_not_finite_is_dropped_and_the_stream_goes_on(tmp_path: Path) -> None:
    head = np.full((10, 96), 3e38, np.float32)
    folder = changed(MODULES / "fog", "loud", tmp_path / "loud", head_weight=head)
    with device("fog") as runtime:
        stream = open_stream(runtime)
        stream.try_module(folder)
        logits = feed(stream, "fog", 4 * BATCH)
        assert np.isfinite(logits).all() and "loud" not in runtime.modules
        assert "loud was dropped" in reasons(stream, "trial")[-1]
        assert stream.error is None and stream.metrics.steps > 0


def test_an_error_costs_the_trial_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    with device("fog") as runtime:
        stream = open_stream(runtime)
        stream.try_module(MODULES / "fog")
        monkeypatch.setattr(stream.trials, "_judge", lambda *_: 1 / 0)
        feed(stream, "fog", BATCH)
        assert reasons(stream, "trial")[-1] == "fog was dropped: ZeroDivisionError: division by zero"
        assert stream.metrics.steps == 1 and stream.error is None


def test_it_is_judged_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step is due, no trial runs; and what it takes is counted as learning."""
    with device("fog") as runtime:
        stream = open_stream(runtime, budget=1e-9)
        stream.try_module(MODULES / "fog")
        feed(stream, "fog", 3 * BATCH)
        assert stream.metrics.skipped_budget == 2 and len(reasons(stream, "trial")) == 2


def test_in_the_background(tmp_path: Path) -> None:
    with device("fog") as runtime:
        stream = runtime.stream(batch=BATCH)
        stream.trials.rules = Rules(every=1, least=24)
        stream.try_module(MODULES / "fog")
        feed(stream, "fog", BATCH)
        stream.wait()
        assert "fog" in runtime.modules
        stream.close()


def test_what_is_refused(tmp_path: Path) -> None:
    shutil.copytree(MODULES / "low_light", tmp_path / "plain")
    config = read_module_config(tmp_path / "plain")
    bare = {k: v for k, v in read_module(tmp_path / "plain", config).tensors.items() if "signature" not in k}
    write_tensors(tmp_path / "plain" / MODULE_FILE, bare)
    with device("fog", "low_light", "motion_blur", "generalist") as runtime:
        stream = open_stream(runtime)
        for folder in ("plain", MODULES / "generalist"):
            with pytest.raises(ConfigError, match="only a specialist with a signature"):
                stream.try_module(tmp_path / folder)
        with pytest.raises(StoreError, match="there is a module 'clear' already"):
            stream.try_module(MODULES / "clear")
        stream.trials.rules = Rules(most=1)
        stream.try_module(MODULES / "fog")
        with pytest.raises(ConfigError, match="on trial already"):
            stream.try_module(MODULES / "fog")
        with pytest.raises(ConfigError, match="that is the limit"):
            stream.try_module(MODULES / "low_light")
        stream.trials.drop("fog", "enough of it")
        with pytest.raises(ConfigError, match="'fog' is not on trial; there are: none"):
            stream.trials.drop("fog", "again")
        other = runtime.stream("other", config=AdaptConfig.paper())
        with pytest.raises(ConfigError, match="weighting='evidence'"):
            other.try_module(MODULES / "fog")


def test_one_of_its_name_that_came_meanwhile() -> None:
    with device("fog") as runtime:
        stream = open_stream(runtime)
        stream.try_module(MODULES / "fog")
        runtime.add_module(MODULES / "fog")
        feed(stream, "fog", 3 * BATCH)
        assert "there is a module 'fog' already" in reasons(stream, "trial")[-1]


@pytest.mark.parametrize(
    "wrong", [{"most": 0}, {"every": 0}, {"least": 0}, {"patience": 0}, {"share": 1.1}, {"agreement": -0.1}]
)
def test_rules_that_make_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Rules(**wrong)  # type: ignore[arg-type]
