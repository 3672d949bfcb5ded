"""What a configuration may say, and how what it must not say is refused."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pluto_edge.cli import main
from pluto_edge.errors import ConfigError
from pluto_edge.service.config import MAX_CAMERAS, ServiceConfig, address, example, read

CAMERA = '[[camera]]\nname = "gate"\nsource = "0"\n'
TOP = 'bundle = "b/"\nstate = "s/"\n'


def config(tmp_path: Path, text: str) -> ServiceConfig:
    file = tmp_path / "serve.toml"
    file.write_text(text)
    return read(file)


def test_the_example_is_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--example"]) == 0
    text = capsys.readouterr().out
    assert text == example()
    said = config(tmp_path, text)
    assert [c.name for c in said.camera] == ["gate", "yard"]
    assert said.camera[1].optional


def test_the_example_names_every_key(tmp_path: Path) -> None:
    """Also with all comments taken away: what they show are the defaults, or values that are allowed."""
    lines = [line.removeprefix("# ") if " = " in line else line for line in example().splitlines()]
    said = tomllib.loads("\n".join(lines))
    assert set(said) == set(ServiceConfig.__dataclass_fields__)
    shown = {key for camera in said["camera"] for key in camera}
    assert shown == set(said_fields(config(tmp_path, "\n".join(lines)).camera[0]))


def said_fields(value: object) -> list[str]:
    return list(vars(value))


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    text = (
        TOP
        + CAMERA
        + '[[camera]]\nname = "b"\nsource = "clips/a.mp4"\n[[camera]]\nname = "c"\nsource = "rtsp://x/y"\n'
    )
    said = config(tmp_path, text)
    assert said.bundle == str(tmp_path / "b") and said.state == str(tmp_path / "s")
    assert [c.source for c in said.camera] == ["0", str(tmp_path / "clips/a.mp4"), "rtsp://x/y"]
    other = config(tmp_path, 'bundle = "https://models.example/meter@stable"\nstate = "/var/x"\n' + CAMERA)
    assert (other.bundle, other.state) == ("https://models.example/meter@stable", "/var/x")


@pytest.mark.parametrize(
    "text, message",
    [
        (CAMERA, "key 'bundle' is missing"),
        (TOP, "key 'camera' is missing"),
        (TOP + "camera = []", "camera: want 1 to 64 of them, got 0"),
        (TOP + CAMERA + "fsp = 3", r"serve.toml.camera\[0\]: there is no key 'fsp'; did you mean fps\?"),
        ("bundel = 1\n" + TOP + CAMERA, "there is no key 'bundel'; did you mean bundle"),
        (TOP + CAMERA + 'fps = "fast"', r"serve.toml.camera\[0\].fps: want float, got str 'fast'"),
        (TOP + CAMERA + "fps = 0", r"camera\[0\]: fps: want 0.01 to 1000, got 0"),
        (TOP + CAMERA + "fps = 0.05", "stall_after: want 40 to 86400, got 20"),
        (TOP + CAMERA + "fps = nan", "fps: want float"),
        (TOP + CAMERA + "batch = 0", "batch: want 1 to 4096"),
        (TOP + CAMERA + "budget = 2.0", "budget: want 0.001 to 1, got 2"),
        (TOP + CAMERA + "budget = 0.4", "the cameras' own add up to 0.4, and all together have 0.3"),
        (TOP + CAMERA + "budget = 0.3\n" + CAMERA.replace("gate", "b"), "leave nothing of 0.3 for b"),
        (TOP + CAMERA + CAMERA, "camera: 'gate' is there twice"),
        (TOP + CAMERA + CAMERA.replace("gate", "Gate"), "camera: 'gate' is there twice"),
        (TOP + CAMERA.replace("gate", "../gate"), r"name: '../gate' is not a safe name"),
        (TOP + CAMERA.replace('"0"', '""'), "source: want a camera"),
        (TOP + CAMERA.replace('"0"', '"-"'), "source: want a camera"),
        (TOP + 'page = "8765"\n' + CAMERA, "page: want HOST:PORT, got '8765'"),
        (TOP + 'metrics = "0.0.0.0:99999"\n' + CAMERA, "metrics: want HOST:PORT"),
        (TOP + 'token = "short"\n' + CAMERA, "token: want at least 16 characters, got 5"),
        (TOP + 'otlp = "collector:4318"\n' + CAMERA, "otlp: want http://"),
        (TOP + "save_every = 0\n" + CAMERA, "save_every: want 1 to 86400"),
        (TOP + "threads = 0\n" + CAMERA, "threads: want 1"),
        (TOP + 'state = ""\n' + CAMERA, "not valid TOML"),
        ('bundle = ""\nstate = "s"\n' + CAMERA, "bundle: want a folder"),
        (TOP + "camera = 3", "camera: want a list, got int 3"),
        (TOP + "camera = [3]", r"camera\[0\]: want an object, got int 3"),
        (TOP + CAMERA + 'on_change = "panic"', "on_change: want one of 'reopen', 'mark'"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, text)
    assert main(["serve", "--check", str(tmp_path / "serve.toml")]) == 2
    assert capsys.readouterr().err.startswith("pluto: error: ")


def test_too_many_cameras(tmp_path: Path) -> None:
    cameras = "".join(CAMERA.replace("gate", f"c{i}") for i in range(MAX_CAMERAS + 1))
    with pytest.raises(ConfigError, match=f"1 to {MAX_CAMERAS} of them, got {MAX_CAMERAS + 1}"):
        config(tmp_path, TOP + cameras)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path / "none.toml")
    (tmp_path / "big.toml").write_bytes(b"#" * 2**21)
    with pytest.raises(ConfigError, match="has at most"):
        read(tmp_path / "big.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not valid TOML"):
        read(tmp_path / "bytes.toml")


def test_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "serve.toml").write_text(TOP + CAMERA)
    assert main(["serve", "--check", str(tmp_path / "serve.toml")]) == 0
    assert capsys.readouterr().out.endswith("ok, 1 cameras: gate\n")
    assert main(["serve"]) == 2
    assert "which configuration?" in capsys.readouterr().err


def test_budgets_add_up(tmp_path: Path) -> None:
    """One has its own, two share the rest, one does not learn."""
    cameras = [CAMERA.replace("gate", name) for name in "abcd"]
    cameras[0] += "budget = 0.1\n"
    cameras[3] += "learn = false\n"
    shares = config(tmp_path, TOP + "".join(cameras)).shares
    assert shares["a"] == 0.1 and shares["b"] == shares["c"] == pytest.approx(0.1)
    assert shares["a"] + shares["b"] + shares["c"] == pytest.approx(0.3) and shares["d"] == 0.001


def test_addresses() -> None:
    assert address("page", "[::1]:80") == ("::1", 80)
    assert address("page", "localhost:0") == ("localhost", 0)


# Whatever a file holds, it is a configuration or a ConfigError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
known = st.sampled_from([*ServiceConfig.__dataclass_fields__, "name", "source", "fps", "stall_after", "x"])


def toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if value is None:
        return "1979-05-27"
    return quoted(value) if isinstance(value, str) else str(value).lower()


def quoted(text: str) -> str:
    return '"' + "".join(c if c.isalnum() or c in " -_./:@" else f"\\u{ord(c) % 0xD800:04x}" for c in text) + '"'


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(top=st.dictionaries(known, values, max_size=4), inner=st.dictionaries(known, values, max_size=4))
def test_rubbish_in_toml(tmp_path: Path, top: dict[str, object], inner: dict[str, object]) -> None:
    good: dict[str, object] = {"bundle": "b", "state": "s"}
    one = {"name": "gate", "source": "0"} | inner
    text = "".join(f"{quoted(k)} = {toml(v)}\n" for k, v in ({"camera": [one]} | good | top).items())
    try:
        assert isinstance(config(tmp_path, text), ServiceConfig)
    except ConfigError as error:
        assert str(tmp_path) in str(error)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200))
def test_rubbish_in_bytes(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.toml").write_bytes(data)
    with pytest.raises(ConfigError):
        read(tmp_path / "x.toml")
