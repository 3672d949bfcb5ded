"""Datasets of every form as folders: the same pixels, the right classes, and errors that say which item."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pluto_edge.domains import DomainFolders, as_folders, domain_folders
from pluto_edge.errors import ConfigError, ImageError
from pluto_edge.preprocess import open_image

NAMES = ("cat", "dog")


def picture(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (9, 7, 3), dtype=np.uint8))


PAIRS = [(picture(i), i % 2) for i in range(6)]


class Vision:
    """As torchvision's: items by number, names in `classes`, no end of its own."""

    classes = ("cat", "dog")

    def __len__(self) -> int:
        return len(PAIRS)

    def __getitem__(self, number: int) -> tuple[Image.Image, int]:
        return PAIRS[number % len(PAIRS)]


class ClassLabel:
    names = ("cat", "dog")


Picture = type("Image", (), {})  # a type of this name is how a column of images is known


class Rows:
    """As Hugging Face's: rows by column, and the columns' types in `features`."""

    def __init__(self, **features: Any) -> None:
        self.features = features or {"photo": Picture(), "animal": ClassLabel(), "id": object()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        names = list(self.features)
        for number, (image, label) in enumerate(PAIRS):
            yield dict(zip(names, (image, label, number), strict=True))


def generator() -> Iterator[tuple[Image.Image, str]]:
    yield from ((image, NAMES[label]) for image, label in PAIRS)


FORMS: dict[str, Callable[[], Any]] = {
    "torchvision": Vision,
    "hugging face": Rows,
    "names": lambda: list(generator()),
    "generator": generator,
    "arrays": lambda: [(np.asarray(image), NAMES[label]) for image, label in PAIRS],
    "numpy labels": lambda: [(image, np.int64(label)) for image, label in PAIRS],
    "torch labels": lambda: [(image, torch.tensor(label)) for image, label in PAIRS],
    "rows without types": lambda: [{"image": image, "label": NAMES[label]} for image, label in PAIRS],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_becomes_the_same_folders(tmp_path: Path, form: str) -> None:
    classes = NAMES if "labels" in form else None
    found = as_folders({"day": FORMS[form]()}, tmp_path, classes)
    assert found.folders == {"day": tmp_path / "day"} and found.classes in (NAMES, None)
    for number, (image, label) in enumerate(PAIRS):
        read = open_image(tmp_path / "day" / NAMES[label] / f"{number:07}.ppm")
        np.testing.assert_array_equal(np.asarray(read), np.asarray(image))
    assert len(list(tmp_path.rglob("*.ppm"))) == len(PAIRS)


def test_bytes_do_not_depend_on_who_wrote_them(tmp_path: Path) -> None:
    """An evaluation knows by them which images were trained on."""
    as_folders({"day": Vision()}, tmp_path)
    PAIRS[0][0].save(tmp_path / "pillow.ppm")
    assert (tmp_path / "day/cat/0000000.ppm").read_bytes() == (tmp_path / "pillow.ppm").read_bytes()


def test_what_is_there_stays_untouched(tmp_path: Path) -> None:
    as_folders({"day": Vision()}, tmp_path)
    files = sorted(tmp_path.rglob("*.ppm"))
    times = [f.stat().st_mtime_ns for f in files]
    files[1].write_bytes(b"half")
    (tmp_path / "day/cat/9999999.ppm").write_bytes(b"of a larger dataset")
    as_folders({"day": Vision()}, tmp_path)
    assert sorted(tmp_path.rglob("*.ppm")) == files
    assert [f.stat().st_mtime_ns for f in files[2:]] == times[2:] and files[0].stat().st_mtime_ns == times[0]
    assert open_image(files[1]).size == (7, 9)


def test_folders_are_taken_as_they_are(tmp_path: Path) -> None:
    as_folders({"day": Vision(), "night": Rows()}, tmp_path / "root")
    assert as_folders(tmp_path / "root", tmp_path) == DomainFolders(domain_folders(tmp_path / "root"))
    assert list(domain_folders(tmp_path / "root")) == ["day", "night"]
    mixed = as_folders({"dusk": str(tmp_path / "root/day"), "dawn": PAIRS}, tmp_path / "more", NAMES)
    assert mixed.folders == {"dusk": tmp_path / "root/day", "dawn": tmp_path / "more/dawn"}
    assert mixed.classes == NAMES and not (tmp_path / "more/dusk").exists()


def test_splits(tmp_path: Path) -> None:
    found = as_folders({"day": {"train": Vision(), "validation": Rows()}}, tmp_path)
    assert sorted(p.relative_to(found.folders["day"]).as_posix() for p in found.folders["day"].glob("*/*")) == [
        "train/cat",
        "train/dog",
        "val/cat",
        "val/dog",
    ]
    with pytest.raises(ConfigError, match=r"day: want splits named train and val or test, got train, extra"):
        as_folders({"day": {"train": Vision(), "extra": Vision()}}, tmp_path)


def test_order_of_the_classes(tmp_path: Path) -> None:
    other = [(image, ("dog", "cat")[label]) for image, label in PAIRS]
    assert as_folders({"a": other, "b": Vision()}, tmp_path).classes == ("cat", "dog")
    assert as_folders({"a": Vision()}, tmp_path, ("dog", "cat")).classes == ("dog", "cat")
    assert (tmp_path / "a/dog/0000000.ppm").is_file()  # class 0, as it was named
    many = [(picture(i), i) for i in (10, 2, 1)]
    assert as_folders({"a": many, "b": many[:1]}, tmp_path).classes == ("1", "2", "10")
    assert as_folders({"a": PAIRS}, tmp_path, names=("x", "y")).folders["a"].joinpath("y/0000001.ppm").is_file()


def float_image() -> Any:
    return torch.zeros(3, 9, 7)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "data: want a folder, or a folder or dataset for every domain; got list"),
        ({}, "data: want a folder"),
        ({"a/b": PAIRS}, "not a safe name"),
        ({"day": "nowhere"}, "domain day: nowhere: no such folder"),
        ({"day": 3}, r"domain day: want a folder or a dataset of \(image, label\), got int"),
        ({"day": []}, "domain day: the dataset holds no image"),
        ({"day": [PAIRS[0], (1, 2, 3)]}, r"domain day: item 1: want \(image, label\), got tuple"),
        ({"day": [(3, 0)]}, "domain day: item 0: want a PIL image, a uint8 array or a path, got int"),
        ({"day": [(picture(0), 0.5)]}, "item 0: want a class's name or number, got float"),
        ({"day": [(picture(0), "..")]}, r"item 0: '\.\.' cannot be the name of a folder"),
        ({"day": [(picture(0), "a/b")]}, "cannot be the name of a folder; give other names with `classes`"),
        ({"day": [{"image": picture(0), "kind": 0}]}, "want one column of labels, found none among image, kind"),
        ({"day": Rows(photo=Picture(), fine=ClassLabel(), coarse=ClassLabel())}, "found fine, coarse among"),
    ],
)
def test_what_is_no_dataset(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        as_folders(data, tmp_path)


def test_labels_beyond_the_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="item 0: class 2, but there are 2 names"):
        as_folders({"day": [(picture(0), 2)]}, tmp_path, NAMES)
    with pytest.raises(ConfigError, match="item 0: 'cow' is none of the classes cat, dog"):
        as_folders({"day": [(picture(0), "cow")]}, tmp_path, NAMES)
    with pytest.raises(ConfigError, match="classes: 'cat' is there twice"):
        as_folders({"day": PAIRS}, tmp_path, ("cat", "cat"))


def test_images_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"domain day: item 0: .*leave transforms that make tensors out"):
        as_folders({"day": [(float_image(), 0)]}, tmp_path)
    with pytest.raises(ImageError, match=r"domain day: item 1: .*photo\.jpg: not a readable image"):
        as_folders({"day": [PAIRS[0], ("photo.jpg", 0)]}, tmp_path)


HUGGING_FACE = """
import sys
sys.path = [p for p in sys.path if not p.endswith("benchmarks")]  # where another datasets.py is
try:
    import datasets
except ImportError:
    sys.exit(3)
from pathlib import Path
from PIL import Image
from pluto_edge.domains import as_folders

place = Path(sys.argv[1])
features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
columns = {"img": [Image.new("RGB", (7, 9), (i, 2 * i, 3)) for i in range(6)], "label": [0, 1] * 3}
whole = datasets.Dataset.from_dict(columns, features=features)
split = datasets.DatasetDict({"train": whole, "test": whole.select(range(2))})
found = as_folders({"day": whole, "night": split, "dusk": whole.to_iterable_dataset()}, place)
assert found.classes == ("cat", "dog") and (place / "night/test/dog/0000001.ppm").is_file()
for folder in ("day", "night/train", "dusk"):
    assert Image.open(place / folder / "dog/0000005.ppm").getpixel((0, 0)) == (5, 10, 3)
"""


def test_hugging_face_itself(tmp_path: Path) -> None:
    """In a process of its own, for the name `datasets` is taken here."""
    done = subprocess.run([sys.executable, "-c", HUGGING_FACE, str(tmp_path)], capture_output=True, text=True)
    if done.returncode == 3:
        pytest.skip("datasets is not installed")
    assert done.returncode == 0, done.stderr
