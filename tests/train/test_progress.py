"""Bars: one line a task with the time left, and silence where there is no terminal."""

import io

import pytest

from pluto_edge.train.progress import Bars


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bars_show_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    with Bars() as bars:
        bars.step("dawn: training", 40, 160)  # gone on from a checkpoint
        bars.step("noon: training", 0, 160)
        bars.bars["dawn: training"].start_t -= 10
        bars.step("dawn: training", 80, 160, "loss 0.7")
        bars.bars["dawn: training"].refresh()
        bars.say("dusk: done")
        assert set(bars.bars) == {"dawn: training", "noon: training"}
        bars.step("dawn: training", 160, 160)
        assert set(bars.bars) == {"noon: training"}
    text = screen.getvalue()
    assert "80/160" in text and "<00:" in text and "loss 0.7" in text and "dusk: done" in text
    assert bars.bars == {}


def test_no_bars_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Bars() as bars:
        bars.step("dawn: training", 1, 2)
        bars.step("dawn: training", 2, 2)
        bars.say("dawn: done")
    assert capsys.readouterr().err == "dawn: done\n"
