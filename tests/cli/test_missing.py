"""What is not installed, reachable or printable: one line that says what to do, and no traceback."""

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from pluto_edge.cli import COMMANDS, main
from pluto_edge.store import Store
from tests import shapes
from tests.cli.typed import PICTURES, ROOT, WORKSTATION, environment, typed
from tests.observe.recordings import made, write

DIGITS = ROOT / "examples/digits"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_on_a_device(command: str, tmp_path: Path) -> None:
    """None of torch, tqdm, matplotlib and rich is there."""
    done = typed(command, "--help", env=environment(tmp_path / "env", WORKSTATION + PICTURES))
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith(f"usage: pluto {command}")


def test_what_needs_a_workstation_says_what_to_install(photos: Path, tmp_path: Path) -> None:
    store, backbone = DIGITS / "store", ("--backbone", "vit_tiny_patch16_224", "--pretrained", "x")
    commands: dict[tuple[object, ...], str] = {
        ("train", "--data", photos, "--out", tmp_path / "s", *backbone): "train",
        ("signatures", store, "--data", photos): "train",
        ("export", store, "--out", tmp_path / "b"): "export",
        ("eval", "--leave-out", "fog", "--store", store, "--data", photos): "train,export",
    }
    for command, extra in commands.items():
        done = typed(*command, env=environment(tmp_path / "env", WORKSTATION), cwd=tmp_path)
        assert done.returncode == 2 and done.stdout == ""
        want = rf'pluto: error: \w+ is not installed; run: pip install "pluto-edge\[{extra}\]"\n'
        assert re.fullmatch(want, done.stderr), done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["env", "photos"]


def test_tqdm_alone_is_named(photos: Path, tmp_path: Path) -> None:
    backbone = ("--backbone", "vit_tiny_patch16_224", "--pretrained", "x")
    env = environment(tmp_path / "env", ("tqdm",))
    done = typed("train", "--data", photos, "--out", tmp_path / "s", *backbone, env=env)
    assert done.stderr == 'pluto: error: tqdm is not installed; run: pip install "pluto-edge[train]"\n'


def test_an_export_without_onnxruntime_asks_for_both(tmp_path: Path) -> None:
    env = environment(tmp_path / "env", (*WORKSTATION, "onnxruntime"))
    done = typed("export", DIGITS / "store", "--out", tmp_path / "b", env=env)
    assert 'run: pip install "pluto-edge[export,cpu]"\n' in done.stderr and done.stderr.count("\n") == 1


def test_corrupt_needs_no_torch(photos: Path, tmp_path: Path) -> None:
    env = environment(tmp_path / "env", WORKSTATION)
    more = ("--corruptions", "fog", "--severities", "2")
    done = typed("corrupt", photos / "dawn", "--out", tmp_path / "out", *more, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out/fog-2").is_dir()


def test_quickstart_without_torch(tmp_path: Path) -> None:
    done = typed(ROOT / "examples/quickstart.py", env=environment(tmp_path / "env", WORKSTATION))
    assert done.returncode == 2 and done.stdout == ""
    assert re.fullmatch(
        r'pluto: error: \w+ is not installed; run: pip install "pluto-edge\[export\]"\n', done.stderr
    )


def test_the_camera_without_matplotlib_and_rich(tmp_path: Path) -> None:
    short = ("--frames", "20", "--hold", "10", "--threads", "1")
    env = environment(tmp_path / "env", WORKSTATION + PICTURES)
    done = typed(ROOT / "examples/camera_stream.py", *short, env=env, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "") and "adapted over clear" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last == 'no picture: matplotlib is not installed; run: pip install "pluto-edge[stream]"'
    assert not (tmp_path / "runs").exists()


def test_a_picture_that_was_asked_for_is_refused_before_the_run(tmp_path: Path) -> None:
    env = environment(tmp_path / "env", PICTURES)
    done = typed("stream", DIGITS / "bundle", tmp_path, "--plot", tmp_path / "a.png", env=env)
    assert done.returncode == 2 and 'pip install "pluto-edge[stream]"' in done.stderr and done.stdout == ""


def test_cotta_alone_without_torch_is_an_error(
    make_bundle: Callable[..., Path], make_store: Callable[..., Store], folders: Path, tmp_path: Path
) -> None:
    fixed = ("--data", folders, "--store", make_store().path, "--out", tmp_path / "out", "--method", "cotta")
    done = typed("eval", make_bundle(), *fixed, env=_without_torch(tmp_path))
    assert done.returncode == 2 and done.stdout == "" and not (tmp_path / "out").exists()
    assert 'none of the methods can run. cotta: it runs in torch; pip install "pluto-edge[export]"' in done.stderr


def _without_torch(tmp_path: Path) -> dict[str, str]:
    """`find_spec` finds nothing, either."""
    env = environment(tmp_path / "env")
    (tmp_path / "env/sitecustomize.py").write_text(
        "import importlib.util as u\nreal = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name in ('torch', 'timm') else real(name, *a)\n"
    )
    return env


def test_pretrained_weights_without_a_network(photos: Path, tmp_path: Path) -> None:
    """The hub's client would try again for a minute."""
    env = environment(tmp_path / "env", HF_ENDPOINT="http://127.0.0.1:9", HF_HOME=str(tmp_path / "hub"))
    for name in (
        "HF_HUB_OFFLINE",
        "http_proxy",
        "https_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
    ):
        env.pop(name, None)
    backbone = ("--backbone", "vit_tiny_patch16_224", "--pretrained", "augreg_in21k")
    done = typed("train", "--data", photos, "--out", tmp_path / "store", *backbone, env=env)
    assert done.returncode == 2 and "Retrying" not in done.stderr and done.stderr.count("\n") == 1
    assert "could not load the pretrained weights" in done.stderr and "--weights FILE.safetensors" in done.stderr
    assert not (tmp_path / "store").exists()


@pytest.fixture
def odd_frames(tmp_path: Path) -> Path:
    frames = tmp_path / "größe"
    frames.mkdir()
    for number in range(3):
        Image.new("RGB", (40, 40), (number, 9, 9)).save(frames / f"{number}ß.png")
    (frames / "kaputt-ü.png").write_bytes(b"x")
    return frames


def test_no_command_needs_a_terminal_with_more_than_ascii(
    make_bundle: Callable[..., Path],
    make_store: Callable[..., Store],
    folders: Path,
    odd_frames: Path,
    photos: Path,
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, bundle = make_store().path, make_bundle()
    write(made({"clear": 20, "größe": 10}), tmp_path / "ü.jsonl")
    compared = ("--seeds", "1", "--target", "other", "--method", "single", "--method", "zero-shot")
    for domain in photos.iterdir():
        first = min(domain.iterdir())
        first.rename(first.with_name("größe"))
    backbone = ("--backbone", shapes.ARCHITECTURE, "--weights", weights, "--image-size", shapes.SIZE)
    trained = ("--data", photos, "--out", tmp_path / "lager-ö", *backbone, "--epochs", "1", "--batch", "8")
    commands: list[tuple[object, ...]] = [
        ("train", *trained),
        ("signatures", tmp_path / "lager-ö", "--data", photos),
        ("info", store),
        ("info", tmp_path / "lager-ö"),
        ("info", bundle, "--json"),
        ("doctor",),
        ("export", store, "--out", tmp_path / "bündel"),
        ("predict", bundle, odd_frames),
        ("predict", bundle, odd_frames, "--json", "--log-json"),
        ("stream", bundle, odd_frames, "--record", tmp_path / "ä.jsonl", "-v"),
        ("stream", bundle, odd_frames, "--json"),
        ("run", bundle, odd_frames, "--batch", "2", "--compare"),
        ("replay", tmp_path / "ü.jsonl"),
        ("replay", tmp_path / "ü.jsonl", "--json", "--force"),
        ("eval", bundle, "--data", folders, *compared, "--out", tmp_path / "eval-ä"),
        ("corrupt", odd_frames / "0ß.png", "--sheet", tmp_path / "sheet-ö.png", "--severities", "3"),
        *(("completion", shell) for shell in ("bash", "zsh", "fish")),
        ("info", tmp_path / "nirgends-ö"),
        ("run", bundle, tmp_path / "nirgends-ö"),
    ]
    for command in commands:
        terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        monkeypatch.setattr("sys.stdout", terminal)
        code = main(list(map(str, command)))
        terminal.flush()
        assert code == (2 if "nirgends-ö" in str(command[-1]) else 0), command
        assert terminal.buffer.getvalue().isascii() and (terminal.buffer.getvalue() or code), command


def test_ascii_by_locale(make_bundle: Callable[..., Path], odd_frames: Path, tmp_path: Path) -> None:
    done = typed("predict", make_bundle(), odd_frames, env=environment(tmp_path / "env", LC_ALL="C"))
    assert done.returncode == 0 and done.stdout.count(": class-") == 3 and done.stderr.count("passed over: ") == 1


def test_names_that_python_cannot_read_are_an_error_of_one_line(
    photos: Path, weights: Path, tmp_path: Path
) -> None:
    """With Python's UTF-8 mode switched off, in a locale without it."""
    for domain in photos.iterdir():
        first = min(domain.iterdir())
        first.rename(first.with_name("größe"))
    backbone = ("--backbone", shapes.ARCHITECTURE, "--weights", weights, "--image-size", shapes.SIZE)
    env = environment(tmp_path / "env", LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    done = typed("train", "--data", photos, "--out", tmp_path / "store", *backbone, env=env)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "PYTHONUTF8=1" in done.stderr and not (tmp_path / "store").exists()
