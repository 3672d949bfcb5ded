"""Options from a TOML file, under those of the command line."""

from pathlib import Path

import pytest

from pluto_edge.cli import COMMANDS, command_parser, main, parse
from pluto_edge.cli.settings import keys
from pluto_edge.train.api import KIND
from tests import shapes

TRAIN = """
data = "photos/"
out = "store/"
backbone = "vit_tiny_patch16_224"
weights = "w.safetensors"
image-size = 112
patch_drop = 0.25
only = ["fog", "snow"]
corruptions = ["fog", "snow"]
no-generalist = true
ray = false
verbose = 0
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(TRAIN)
    return path


def test_every_kind_of_option(file: Path) -> None:
    options, _ = parse(["train", str(file)])
    assert (options.data, options.out, options.weights) == (Path("photos/"), Path("store/"), Path("w.safetensors"))
    assert (options.image_size, options.patch_drop, options.epochs) == (112, 0.25, 20)
    assert (options.only, options.corruptions) == (["fog", "snow"], "fog,snow")
    assert (options.generalist, options.ray, options.kind) == (False, False, None) and KIND == "adapter"


def test_the_command_line_wins(file: Path) -> None:
    options, _ = parse(["train", str(file), "--only", "ice", "--image-size=64", "--into", "old/", "--data", "d"])
    assert (options.only, options.image_size, options.data) == (["ice"], 64, Path("d"))
    assert (options.into, options.out) == (Path("old/"), None)  # one excludes the other


def test_arguments_and_a_table_for_each_command(tmp_path: Path) -> None:
    file = tmp_path / "pluto.toml"
    file.write_text(
        '[export]\nstore = "s/"\nprecision = "int8"\n[run]\nbundle = "b/"\nfolders = ["day", "night"]\nbatch = 8\n'
        '[stream]\nbundle = "b/"\nsource = "clip.mp4"\nbackground = true\nview = true\nbudget = 0.2\n'
        '[eval]\nbundle = "b/"\ndata = "d"\n[bench]\nbundle = "b/"\nbatch = [1, 8]\njson = true\n'
    )
    options, _ = parse(["export", str(file)])
    assert (options.store, options.precision) == (Path("s/"), "int8")
    options, _ = parse(["run", str(file), "--batch", "4"])
    assert (options.bundle, options.folders, options.batch) == (Path("b/"), [Path("day"), Path("night")], 4)
    options, _ = parse(["stream", str(file)])
    assert (options.source, options.background, options.view) == ("clip.mp4", True, "127.0.0.1:8765")
    assert options.budget == 0.2
    options, _ = parse(["stream", str(file), "other/", "0", "--no-background"])
    assert (options.bundle, options.source, options.background) == (Path("other/"), "0", False)
    options, _ = parse(["eval", str(file)])
    assert (options.bundle, options.data) == (Path("b/"), Path("d"))
    options, _ = parse(["bench", str(file)])
    assert (options.batch, options.json) == ("1,8", "-")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_can_be_in_a_file(command: str) -> None:
    parser = command_parser(command)[1]
    found = set(keys(parser).values())
    missing = [a for a in parser._actions if a not in found and a.dest not in ("help", "bundle_flag")]
    assert not missing


@pytest.mark.parametrize(
    "text, message",
    [
        ('epoch = 3\ndata = "d"', "`pluto train` has no option 'epoch'; did you mean epochs?"),
        ("[trian]\nepochs = 3", "there is no command 'trian' for its table; did you mean train?"),
        ("[export]\nforce = true", "has no table [train]; there are: export"),
        ("seed = 1\n[train]\nepochs = 3", "seed: is in no table"),
        ('epochs = "many"', "epochs: want int, got 'many'"),
        ("epochs = true", "epochs: want a value as on the command line, got True"),
        ('ray = "yes"', "ray: want true or false, got 'yes'"),
        ('verbose = "much"', "verbose: want a whole number"),
        ('kind = "adaptor"', "want one of vpt, adapter, got 'adaptor'; did you mean adapter?"),
        ('out = "a"\ninto = "b"', "--out and --into: one of the two"),
        ("epochs = ", "not valid TOML"),
    ],
)
def test_what_a_file_must_not_say(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.toml").write_text(text)
    assert main(["train", str(tmp_path / "c.toml")]) == 2
    assert message in capsys.readouterr().err


def test_what_is_missing_in_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.toml").write_text('data = "d"')
    with pytest.raises(SystemExit, match="2"):
        main(["train", str(tmp_path / "c.toml")])
    assert "one of the arguments --out --into is required" in capsys.readouterr().err
    assert main(["train", str(tmp_path / "absent.toml")]) == 2
    assert "absent.toml" in capsys.readouterr().err


def test_a_file_is_run(tmp_path: Path, photos: Path, weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = {
        "data": photos.as_posix(),
        "out": (tmp_path / "store").as_posix(),
        "backbone": shapes.ARCHITECTURE,
        "weights": weights.as_posix(),
    }
    text = "".join(f'{key} = "{value}"\n' for key, value in lines.items())
    text += f"image-size = {shapes.SIZE}\nepochs = 9\nbatch = 8\nno-generalist = true\n"
    (tmp_path / "c.toml").write_text(text)
    assert main(["train", str(tmp_path / "c.toml"), "--epochs", "1", "--threads", "1"]) == 0
    said = capsys.readouterr().out
    assert "dawn" in said and "generalist" not in said and f"next: pluto export {tmp_path / 'store'}" in said
    card = (tmp_path / "store/modules/dawn/README.md").read_text("utf-8")
    assert "An adapter module of size 8" in card and "at most 1 epochs" in card
