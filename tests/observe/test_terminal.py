"""What a run shows while it goes on."""

import sys
from io import StringIO

import pytest

from pluto_edge.errors import MissingExtraError
from pluto_edge.observe import terminal
from pluto_edge.observe.recording import Recorder
from tests.observe.recordings import HEADER, made


def test_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    recording = made({"clear": 150, "fog": 100})
    display = terminal.open_display(Recorder(HEADER))
    for row in recording.rows:
        display.show(row)
    display.close()
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("frame 100 · clear · ") and first.endswith("leans on clear")
    right = sum(r.label == r.truth for r in recording.rows[:200]) / 200
    assert second.startswith("frame 200 · fog · ") and f"last 200: {right:.3f} adapted" in second
    assert second.endswith("leans on fog")


def test_a_terminal_has_bars_events_and_unseen_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    console, target = pytest.importorskip("rich.console"), StringIO()
    screen = console.Console(file=target, width=100, force_terminal=True, color_system=None)
    monkeypatch.setattr("rich.live.get_console", lambda: screen)
    monkeypatch.setattr(terminal, "REFRESH", 0.0)
    recorder, recording = Recorder(HEADER), made({"frost": 20})
    for event in recording.events:
        recorder.event(event)
    display = terminal.Live(recorder)
    try:
        for row in recording.rows:
            display.show(row)
        text = target.getvalue().rpartition("╭")[2]  # as it was drawn last
    finally:
        display.close()
    assert "frost  no module knows it" in text and "frame 20" in text
    assert f"clear  {'█' * 26}{'░' * 6}  0.80" in text and "fog" in text
    assert "31  change    fog <up>" in text and "3/4 reliable, top fog" in text


def test_a_terminal_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setitem(sys.modules, "rich.live", None)
    with pytest.raises(MissingExtraError, match=r'rich is not installed; run: pip install "pluto-edge\[stream\]"'):
        terminal.Live(Recorder(HEADER))
    assert isinstance(terminal.open_display(Recorder(HEADER)), terminal.Lines)
