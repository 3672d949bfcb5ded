"""A new bundle has no say until it has shown that it is not broken; a device that dies of it comes up again."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pluto_edge import Runtime
from pluto_edge.errors import BundleError, ConfigError
from pluto_edge.fleet.ledger import MAX_STARTS, Ledger
from pluto_edge.fleet.rollout import Bounds, Rollout
from tests.digits import BUNDLE, device, draw
from tests.faults import every_fault

FEW = Bounds(frames=12, ratio=1000.0)
Make = Callable[..., Path]


@pytest.fixture
def old() -> Iterator[Runtime]:
    with device() as runtime:
        yield runtime


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.json")


def play(rollout: Rollout, count: int = 12) -> None:
    for image in draw("clear", count)[0]:
        rollout(image)


def stuck(tensors: dict[str, np.ndarray]) -> None:
    tensors["head_bias"][:] = 0
    tensors["head_bias"][3] = 1000.0


def every_module(change: Callable[[dict[str, np.ndarray]], None]) -> dict[str, Callable[..., None]]:
    return dict.fromkeys((f.stem for f in (BUNDLE / "modules").glob("*.safetensors")), change)


def test_a_good_bundle_is_committed(old: Runtime, make_other: Make, ledger: Ledger) -> None:
    new = make_other()
    rollout = Rollout.open(old, new, ledger, FEW)
    images = draw("clear", 12)[0]
    for number, image in enumerate(images):
        assert rollout.verdict is None and rollout.runtime is old
        np.testing.assert_array_equal(rollout(image).logits, old.predict(image).logits)
        assert (rollout.verdict is None) == (number < 11)
    verdict = rollout.verdict
    assert verdict is not None and verdict.committed and verdict.reasons == ()
    assert verdict.frames == 12 and verdict.agreement == 1.0 and verdict.old_classes == verdict.new_classes > 1
    assert rollout.runtime is rollout.new and len(rollout(images[0])) == 1
    assert old.events[-1].kind == "trial" and "was committed" in old.events[-1].reason
    assert Ledger(ledger.path).standing(BUNDLE) == new.resolve()
    assert Ledger(ledger.path).verdicts == (verdict,)
    rollout.close()


def test_a_bundle_that_has_collapsed_is_taken_back(old: Runtime, make_other: Make, ledger: Ledger) -> None:
    new = make_other(**every_module(stuck))
    rollout = Rollout.open(old, new, ledger, FEW)
    play(rollout)
    assert rollout.verdict is not None and not rollout.verdict.committed and rollout.runtime is old
    said = " ".join(rollout.verdict.reasons)
    assert "both agree on" in said and "it says 1.0 classes" in said
    assert Ledger(ledger.path).standing(BUNDLE) == BUNDLE
    with pytest.raises(ConfigError, match=r"it was tried before and bundle .* was taken back"):
        Rollout.open(old, new, Ledger(ledger.path), FEW)
    rollout.close()


def test_too_slow(old: Runtime, make_other: Make) -> None:
    with Runtime(make_other(), threads=1) as new:
        now = iter(np.cumsum([0, 1e-3, 0, 5e-3] * 4))
        rollout = Rollout(old, new, Bounds(frames=4, ratio=2.0, milliseconds=3.0), clock=lambda: float(next(now)))
        play(rollout, 4)
        assert rollout.verdict is not None and len(rollout.verdict.reasons) == 2
        assert rollout.verdict.old_milliseconds == pytest.approx(1.0)
        assert "5.0 ms a frame, want at most 2 times the old bundle's 1.0" in rollout.verdict.reasons[0]


def test_an_error_of_the_new_one_costs_no_prediction(
    old: Runtime, make_other: Make, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout = Rollout.open(old, make_other(), ledger, FEW)
    assert rollout.new is not None
    monkeypatch.setattr(rollout.new, "predict", lambda _: 1 / 0)
    play(rollout, 3)
    assert rollout.verdict is not None and rollout.verdict.reasons == (
        "frame 1: ZeroDivisionError: division by zero",
    )
    assert rollout.runtime is old
    rollout.close()


def test_what_does_not_open_has_its_verdict_at_once(old: Runtime, make_other: Make, ledger: Ledger) -> None:
    new = make_other()
    with (new / "weights.bin").open("r+b") as file:
        file.write(b"damaged")
    rollout = Rollout.open(old, new, ledger, FEW)
    assert rollout.new is None and rollout.verdict is not None and not rollout.verdict.committed
    assert (
        "it does not open" in rollout.verdict.reasons[0] and "weights.bin was changed" in rollout.verdict.reasons[0]
    )
    assert len(rollout(draw("clear", 1)[0][0])) == 1
    with pytest.raises(ConfigError, match="not a bundle"):
        Rollout.open(old, new / "modules", ledger)
    with pytest.raises(ConfigError, match="runs already"):
        Rollout.open(old, BUNDLE, ledger)


def test_a_device_that_dies_comes_up_with_the_old_bundle(old: Runtime, make_other: Make, ledger: Ledger) -> None:
    new = make_other()
    for start in range(MAX_STARTS):
        again = Ledger(ledger.path)
        assert again.standing(BUNDLE) == BUNDLE
        rollout = Rollout.open(old, new, again, FEW)
        play(rollout, 2 + start)  # and here the power goes
        assert rollout.verdict is None and rollout.new is not None
        rollout.new.close()
    with pytest.raises(ConfigError, match=f"begun {MAX_STARTS} times and never ended"):
        Rollout.open(old, new, Ledger(ledger.path), FEW)


def test_a_trial_that_is_put_off_does_not_count(old: Runtime, make_other: Make, ledger: Ledger) -> None:
    new = make_other()
    for _ in range(MAX_STARTS + 1):
        rollout = Rollout.open(old, new, Ledger(ledger.path), FEW)
        play(rollout, 1)
        rollout.close()


def test_a_trial_that_is_left_counts_and_says_no_more(old: Runtime, make_other: Make, ledger: Ledger) -> None:
    new, better = make_other(), make_other("better")
    left = []
    for _ in range(MAX_STARTS):
        left.append(Rollout.open(old, new, ledger, FEW))
        left[-1].leave()
    with pytest.raises(ConfigError, match=f"begun {MAX_STARTS} times and never ended"):
        Rollout.open(old, new, ledger, FEW)
    rollout = Rollout.open(old, better, ledger, FEW)
    before = ledger.path.read_bytes()
    play(left[0])  # it comes back, with a verdict
    assert left[0].verdict is not None and left[0].new is not None
    left[0].new.close()
    for one in left[1:]:
        one.close()
    assert ledger.path.read_bytes() == before
    play(rollout)
    assert Ledger(ledger.path).standing(BUNDLE) == better.resolve()
    rollout.close()


def test_the_ledger_survives_whatever_happens(tmp_path: Path) -> None:
    file = tmp_path / "ledger.json"

    def prepare() -> None:
        file.unlink(missing_ok=True)
        Ledger(file).begin("a" * 64, "first")

    def check() -> None:
        assert json.loads(file.read_text())["starts"] in ({"a" * 64: 1}, {"a" * 64: 1, "b" * 64: 1})
        assert Ledger(file).standing(BUNDLE) == BUNDLE

    def act() -> None:
        found = Ledger(file)
        if "b" * 64 not in file.read_text():
            found.begin("b" * 64, "second")

    every_fault(prepare, act, check)


def test_a_damaged_ledger_raises(tmp_path: Path) -> None:
    (tmp_path / "ledger.json").write_text('{"schema_version": 2}')
    with pytest.raises(BundleError, match="newer than this pluto-edge"):
        Ledger(tmp_path / "ledger.json")


@pytest.mark.parametrize("wrong", [{"frames": 0}, {"agreement": 2.0}, {"ratio": 0.0}, {"milliseconds": -1.0}])
def test_bounds_that_make_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Bounds(**wrong)  # type: ignore[arg-type]
