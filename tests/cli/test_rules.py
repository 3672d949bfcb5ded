"""The rules that all commands keep: arguments, overwriting, suggestions, logs, completion, progress."""

import io
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from pluto_edge import _progress
from pluto_edge.cli import COMMANDS, main
from pluto_edge.errors import ConfigError
from pluto_edge.evaluate.targets import find_targets
from pluto_edge.preprocess import image_files
from pluto_edge.store import Store
from pluto_edge.train.data import scan
from tests import shapes
from tests.observe.recordings import made, write

Capture = pytest.CaptureFixture[str]


# What is read comes first; flags of earlier versions stay


def test_a_store_with_and_without_its_flag(
    make_store: Callable[..., Store], tmp_path: Path, capsys: Capture
) -> None:
    store = str(make_store().path)
    for number, given in enumerate(([store], ["--modules", store])):
        assert main(["export", *given, "--out", str(tmp_path / str(number)), "--quiet"]) == 0
    assert main(["export", store, "--modules", store]) == 2
    assert "which of them is the store? Give one" in capsys.readouterr().err
    assert main(["export"]) == 2
    assert "which store? For example: pluto export store/" in capsys.readouterr().err


def test_a_bundle_with_and_without_its_flag(
    make_bundle: Callable[..., Path], folders: Path, tmp_path: Path, capsys: Capture
) -> None:
    bundle, fixed = str(make_bundle()), ["--data", str(folders), "--target", "other", "--seeds", "1"]
    fixed += ["--method", "zero-shot", "--out", str(tmp_path / "out"), "--threads", "1"]
    for given in ([bundle], ["--bundle", bundle]):
        assert main(["eval", *given, *fixed, "--quiet"]) == 0
    for given, message in (
        ([bundle, "--bundle", bundle], "which of them is the bundle"),
        ([], "which bundle? For example: pluto eval bundle/ --data photos/"),
        ([bundle, "--leave-out", "x", "--store", "s"], "makes a bundle of its own"),
    ):
        assert main(["eval", *given, *fixed]) == 2
        assert message in capsys.readouterr().err


# What is there stays


def test_predictions_are_appended_only_when_asked(
    make_bundle: Callable[..., Path], folders: Path, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "out.jsonl"
    command = [
        "run",
        str(make_bundle()),
        str(folders / "other"),
        "--limit",
        "4",
        "--predict-only",
        "--out",
        str(out),
    ]
    assert main([*command, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["folders"][0]["folder"] == "other" and said["folders"][0]["images"] == 4
    assert 0 <= said["folders"][0]["accuracy"]["no learning"] <= 1
    for more, code, lines in (([], 2, 4), (["--append"], 0, 8), (["--force"], 0, 4)):
        assert main([*command, *more]) == code
        assert len(out.read_text().splitlines()) == lines
    assert main([*command[:-2], "--out", str(out), "--force", "--batch", "0"]) == 2
    assert len(out.read_text().splitlines()) == 4, "an error deletes nothing"


def test_reports_are_not_overwritten_unawares(tmp_path: Path, capsys: Capture) -> None:
    write(made({"clear": 20}), tmp_path / "run.jsonl")
    (tmp_path / "run.html").write_text("mine")
    assert main(["replay", str(tmp_path / "run.jsonl")]) == 2
    assert "run.html: is there already; overwrite it with --force" in capsys.readouterr().err
    assert (tmp_path / "run.html").read_text() == "mine"
    assert main(["replay", str(tmp_path / "run.jsonl"), "--force"]) == 0
    assert (tmp_path / "run.html").read_text("utf-8").startswith("<!doctype html>")


def test_corruptions_are_not_overwritten_unawares(photos: Path, tmp_path: Path, capsys: Capture) -> None:
    image = str(min(photos.rglob("*.png")))
    more = ["--corruptions", "fog", "--severities", "1"]
    for what in (["--sheet", str(tmp_path / "sheet.png")], ["--out", str(tmp_path / "out")]):
        capsys.readouterr()
        assert main(["corrupt", image, *what, *more, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["written"] == what[1]
        assert main(["corrupt", image, *what, *more]) == 2
        assert "--force" in capsys.readouterr().err
        assert main(["corrupt", image, *what, *more, "--force"]) == 0


def test_the_report_of_another_comparison_stays(
    make_bundle: Callable[..., Path], folders: Path, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "out"
    fixed = ["eval", str(make_bundle()), "--data", str(folders), "--out", str(out), "--threads", "1"]
    fixed += ["--method", "zero-shot", "--seeds", "1"]
    assert main([*fixed, "--target", "other", "--json"]) == 0
    before = (out / "results.json").read_bytes()
    assert json.loads(capsys.readouterr().out) == json.loads(before)
    for more, what in ((["--target", "noise"], "target"), (["--target", "other", "--batch", "8"], "protocol")):
        assert main([*fixed, *more]) == 2
        assert f"a comparison with another {what}; overwrite it with --force" in capsys.readouterr().err
        assert (out / "results.json").read_bytes() == before
    assert main([*fixed, "--target", "other", "--method", "single", "--quiet"]) == 0  # one more method
    assert main([*fixed, "--target", "noise", "--force", "--quiet"]) == 0
    assert (out / "results.json").read_bytes() != before


def test_folders_one_level_too_deep(
    make_bundle: Callable[..., Path], folders: Path, tmp_path: Path, capsys: Capture
) -> None:
    """A report that is there survives it."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/report.html").write_text("mine")
    deep = str(folders / "other")
    assert main(["eval", str(make_bundle()), "--data", deep, "--out", str(tmp_path / "out")]) == 2
    assert f"the root is one level up, --data {folders}" in capsys.readouterr().err
    assert (tmp_path / "out/report.html").read_text() == "mine"
    backbone = ["--backbone", "vit_tiny_patch16_224", "--pretrained", "x"]
    assert main(["train", "--data", deep, "--out", str(tmp_path / "s"), *backbone]) == 2
    assert f"the root is one level up, --data {folders}" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


# Hidden folders


def test_what_a_mac_adds_is_not_there(folders: Path, photos: Path, tmp_path: Path) -> None:
    root = tmp_path / "copy"
    shutil.copytree(photos, root)
    before = scan(root)
    for folder in ("__MACOSX/dawn/circle", ".hidden/circle", "dawn/__MACOSX", "dawn/.cache", "noon/.cache/x"):
        (root / folder).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(root / folder / "a.png")
    first = next(p for p in (root / "dawn").iterdir() if p.is_dir() and p.name[0] not in "._")
    (first / "._a.png").write_bytes(b"a resource fork")
    assert scan(root) == before
    assert not [f for f in image_files(root) if "MACOSX" in str(f) or f.name.startswith(".")]
    targets = find_targets(root, [], before[0].classes)
    assert [t.name for t in targets] == ["dawn", "noon"]
    assert image_files(root / ".hidden/circle"), "a folder that was asked for by name is no secret"
    with pytest.raises(ConfigError, match="no domain 'dwan'; there are: dawn, noon; did you mean dawn"):
        find_targets(root, ["dwan"], before[0].classes)


# Suggestions


@pytest.mark.parametrize(
    "arguments, hint",
    [
        (["trian"], "did you mean train?"),
        (["export", "--presicion", "int8"], "did you mean --precision?"),
        (["train", "--dta=x"], "did you mean --data?"),  # before what is missing without it
        (["export", "s/", "--precision", "int88"], "did you mean int8?"),
        (["run", "b/", "f/", "--batc", "3"], "did you mean --batch?"),  # nothing is abbreviated
        (["completion", "bsh"], "did you mean bash?"),
        (["info", "a", "b"], "unrecognized arguments: b"),
    ],
)
def test_did_you_mean(arguments: list[str], hint: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    said = capsys.readouterr().err
    assert hint in said and said.startswith(f"usage: pluto {arguments[0]}" if arguments[0] in COMMANDS else "usage")


def test_did_you_mean_of_values(
    make_bundle: Callable[..., Path], folders: Path, photos: Path, tmp_path: Path, capsys: Capture
) -> None:
    image = str(min(photos.rglob("*.png")))
    for arguments, hint in (
        (["eval", str(make_bundle()), "--data", str(folders), "--method", "tennt"], "did you mean tent?"),
        (["eval", str(make_bundle()), "--data", str(folders), "--method", "tent:lrr=1"], "did you mean lr?"),
        (["eval", str(make_bundle()), "--data", str(folders), "--target", "nois"], "did you mean noise?"),
        (["corrupt", image, "--sheet", str(tmp_path / "s.png"), "--corruptions", "fogg"], "did you mean fog?"),
        (["train", "--data", str(photos), "--out", str(tmp_path / "s"), "--only", "down"], "did you mean dawn?"),
    ):
        assert main(arguments) == 2
        assert hint in capsys.readouterr().err


# For machines


def test_info_as_json(make_bundle: Callable[..., Path], make_store: Callable[..., Store], capsys: Capture) -> None:
    assert main(["info", str(make_bundle()), "--json"]) == 0
    bundle = json.loads(capsys.readouterr().out)
    assert bundle["type"] == "bundle" and [m["name"] for m in bundle["modules"]] == [
        f"domain-{i}" for i in range(3)
    ]
    assert main(["info", str(make_store().path), "--json"]) == 0
    store = json.loads(capsys.readouterr().out)
    assert store["type"] == "store" and store["classes"] == bundle["classes"]
    assert store["modules"]["domain-0"]["source"] == "random weights"


def test_bench_as_json(make_bundle: Callable[..., Path], tmp_path: Path, capsys: Capture) -> None:
    command = ["bench", str(make_bundle()), "--batch", "1", "--modules", "1", "--repeats", "1", "--threads", "1"]
    assert main([*command, "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["plan"]["batches"] == [1] and "... " in said.err
    (tmp_path / "a.json").write_text("mine")
    assert main([*command, "--json", str(tmp_path / "a.json")]) == 2
    assert "--force" in capsys.readouterr().err and (tmp_path / "a.json").read_text() == "mine"


# Logs


def test_the_log_for_people_and_for_machines(make_bundle: Callable[..., Path], capsys: Capture) -> None:
    command = ["info", str(make_bundle())]
    assert main(command) == 0
    assert capsys.readouterr().err == ""
    assert main([*command, "-v"]) == 0
    first, *_, last = capsys.readouterr().err.splitlines()
    assert " info    pluto info: path " in first and "ended after" in last and last.endswith("with 0")
    assert main(["info", "/nowhere\x1b[31m", "--log-json"]) == 2
    said = capsys.readouterr()
    begun, error, ended = map(json.loads, said.err.splitlines())
    assert said.out == "" and "\x1b" not in said.err
    assert (begun["level"], error["level"], ended["code"]) == ("info", "error", 2)
    assert begun["options"]["path"].startswith("/nowhere") and "neither a bundle" in error["message"]
    assert main(command) == 0
    assert capsys.readouterr().err == "", "a log ends with its command"


# Completion

COMPLETED = {
    "pluto tr": "train",
    "pluto export --prec": "--precision",
    "pluto export --precision in": "int8",
    "pluto completion zs": "zsh",
    "pluto-export --for": "--force",
}


def script(shell: str, capsys: Capture) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_bash_completes(capsys: Capture) -> None:
    for line, word in COMPLETED.items():
        words = line.split()
        ask = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _pluto; echo ${{COMPREPLY[@]}}"
        done = subprocess.run(
            ["bash", "-c", f"{script('bash', capsys)}\n{ask}"], capture_output=True, text=True, check=True
        )
        assert (done.stdout.strip(), done.stderr) == (word, "")


@pytest.mark.skipif(not shutil.which("fish"), reason="no fish")
def test_fish_completes(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "pluto.fish").write_text(script("fish", capsys))
    for line, word in COMPLETED.items():
        command = ["fish", "--no-config", "-c", f"source {tmp_path}/pluto.fish; complete -C '{line}'"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.split("\t")[0].strip() == word


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_has_every_command_and_option(shell: str, capsys: Capture) -> None:
    text = script(shell, capsys)
    assert all(name in text for name in COMMANDS) and "log-json" in text
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=text, text=True, check=True)


# Progress where there is no terminal


def test_lines_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    now = [0.0]
    monkeypatch.setattr(_progress, "monotonic", lambda: now[0])
    lines = _progress.Lines()
    for done in range(101):
        now[0] = 0.5 * done
        lines.step("dawn: training", done, 100, "loss 0.7")
    assert capsys.readouterr().err.splitlines() == [
        "dawn: training: 20%, about 40 s left, loss 0.7",
        "dawn: training: 40%, about 30 s left, loss 0.7",
        "dawn: training: 60%, about 20 s left, loss 0.7",
        "dawn: training: 80%, about 10 s left, loss 0.7",
        "dawn: training: 100%, loss 0.7",
    ]
    now[0] += 20
    lines.step("noon: training", 0, 100)
    now[0] += 100
    lines.step("noon: training", 1, 100)
    assert capsys.readouterr().err.splitlines()[-1] == "noon: training: 1%, about 2 h 45 min left"


def test_long_commands_say_how_far_they_are(
    make_bundle: Callable[..., Path],
    make_store: Callable[..., Store],
    folders: Path,
    photos: Path,
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    """Every step is a line here; `--quiet` is silent."""
    monkeypatch.setattr(_progress, "INTERVAL", 0.0)
    backbone = ["--backbone", shapes.ARCHITECTURE, "--weights", str(weights), "--image-size", str(shapes.SIZE)]
    image = str(min(photos.rglob("*.png")))
    commands = {
        "training": ["train", "--data", str(photos), *backbone, "--epochs", "1", "--threads", "1", "--out"],
        "export: 67%": ["export", str(make_store().path), "--out"],
        "eval: ": [
            "eval",
            str(make_bundle()),
            "--data",
            str(folders),
            "--target",
            "other",
            "--seeds",
            "1",
            "--out",
        ],
        "corrupt: ": ["corrupt", image, "--severities", "1", "--out"],
    }
    commands["eval: "][1:1] = ["--method", "zero-shot"]
    for number, (line, command) in enumerate(commands.items()):
        assert main([*command, str(tmp_path / str(number))]) == 0
        assert line in capsys.readouterr().err, command[0]
        if command[0] != "corrupt":
            assert main([*command, str(tmp_path / f"{number}-quiet"), "--quiet"]) == 0
            assert capsys.readouterr().err == ""


def test_bars_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch, make_store: Callable[..., Store], tmp_path: Path
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    assert _progress.live()
    assert main(["export", str(make_store().path), "--out", str(tmp_path / "b")]) == 0
    assert "stage" in screen.getvalue() and "%|" in screen.getvalue()
