"""The folders that the tables of docs/results.md are made of, from the archives of docs/data.md.

    python benchmarks/datasets.py --archives ../shared/data --out runs/data

    pacs/<domain>/<class>                 as it is in the archive
    cifar/clean/train|val/<class>         1,970 and 30 images a class of CIFAR-10's training split
    cifar-c/<corruption>-5/<class>        test images 0 to 29 of each class, all 15 corruptions
    cifar-long/<corruption>-5/<class>     test images 40 to 167 of each class, all 15 corruptions: 300 batches of 64
    cifar-dev/<corruption>-<3|4>/<class>  test images 300 to 325, ten corruptions: development conditions
    cifar-probe/<corruption>-5/<class>    test images 30 to 39, corruptions with a module in the continual run
    cifar-source/<corruption>-5/<class>   the same of the validation images, for EATA's Fisher information
    digits/<domain>/train|val/<class>     mnist, mnist_m, usps, svhn and rendered: 200 and 100 images a digit
    meter/<condition>/<digit>             the digits example's conditions, seen and unseen, newly rendered

What is there already is left alone.
"""

import argparse
import sys
import tempfile
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image
from tables import DEVELOPMENT

from pluto_edge._files import whole_folder
from pluto_edge.cli import main as pluto
from pluto_edge.train.corruptions import NAMES

SEVERITY = "5"
SOURCES = ("snow", "frost", "fog", "brightness")
DIGITS = ("mnist", "mnist_m", "usps", "svhn")
DIGIT_IMAGES = {"train": 200, "val": 100}
METER_IMAGES = 250
CIFAR_TRAIN, CIFAR_VAL = 1970, 30  # a class


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archives", type=Path, required=True, help="folder of the zip files")
    parser.add_argument("--out", type=Path, default=Path("runs/data"))
    options = parser.parse_args()
    makers: dict[str, Callable[[Path, Path], None]] = {
        "pacs": pacs,
        "cifar": cifar,
        "cifar-c": cifar_c,
        "cifar-long": cifar_long,
        "cifar-dev": cifar_dev,
        "cifar-probe": cifar_probe,
        "cifar-source": cifar_source,
        "digits": digits,
        "meter": meter,
    }
    for name, make in makers.items():
        if (options.out / name).exists():
            continue
        options.out.mkdir(parents=True, exist_ok=True)
        with whole_folder(options.out / name) as folder:
            make(options.archives, folder)
        print(f"{options.out / name}: {sum(1 for f in (options.out / name).rglob('*.*'))} images", flush=True)


def pacs(archives: Path, out: Path) -> None:
    with zipfile.ZipFile(archives / "pacs_128.zip") as archive:
        archive.extractall(out)


def cifar(archives: Path, out: Path) -> None:
    for split, first, last in (("train", 0, CIFAR_TRAIN), ("val", CIFAR_TRAIN, CIFAR_TRAIN + CIFAR_VAL)):
        _copy(archives / "cifar10.zip", "train", out / "clean" / split, first, last)


def cifar_c(archives: Path, out: Path) -> None:
    _corrupt(archives, out, NAMES, "test", 0, 30)


def cifar_long(archives: Path, out: Path) -> None:
    _corrupt(archives, out, NAMES, "test", 40, 168)


def cifar_dev(archives: Path, out: Path) -> None:
    for name in DEVELOPMENT:
        corruption, severity = name.rsplit("-", 1)
        _corrupt(archives, out, (corruption,), "test", 300, 326, severity)


def cifar_probe(archives: Path, out: Path) -> None:
    _corrupt(archives, out, SOURCES, "test", 30, 40)


def cifar_source(archives: Path, out: Path) -> None:
    _corrupt(archives, out, SOURCES, "train", CIFAR_TRAIN, CIFAR_TRAIN + 10)


def digits(archives: Path, out: Path) -> None:
    for domain in DIGITS:
        for split, count in DIGIT_IMAGES.items():
            part = "train" if split == "train" else "test"
            _copy(archives / "digits.zip", f"{domain}/{part}", out / domain / split, 0, count)
    draw = _meter()
    for split, count in DIGIT_IMAGES.items():
        rng = np.random.default_rng(zlib.crc32(split.encode()))
        for digit in range(10):
            _save(out / "rendered" / split / str(digit), [draw.render(rng, digit) for _ in range(count)])


def meter(archives: Path, out: Path) -> None:
    draw = _meter()
    for name, change in {**draw.CONDITIONS, **draw.UNSEEN}.items():
        rng = np.random.default_rng(zlib.crc32(f"evaluation {name}".encode()))
        for digit in range(10):
            images = [change(draw.render(rng, digit, fonts=()), rng) for _ in range(METER_IMAGES)]
            _save(out / name / str(digit), images)


def _meter():
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "digits"))
    import meter as drawing

    return drawing


def _save(folder: Path, images: list[np.ndarray]) -> None:
    folder.mkdir(parents=True)
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{number:04}.png")


def _copy(file: Path, inside: str, out: Path, first: int, last: int) -> None:
    """Files `first` to `last` of every class below `inside`, as `out/<class>/<file>`."""
    classes = defaultdict(list)
    with zipfile.ZipFile(file) as archive:
        for path in sorted(map(PurePosixPath, archive.namelist())):
            if str(path.parent.parent) == inside and path.suffix:
                classes[path.parent.name].append(path)
        for name, paths in classes.items():
            (out / name).mkdir(parents=True)
            for path in paths[first:last]:
                (out / name / path.name).write_bytes(archive.read(str(path)))


def _corrupt(
    archives: Path, out: Path, names: tuple[str, ...], split: str, first: int, last: int, severity: str = SEVERITY
) -> None:
    with tempfile.TemporaryDirectory() as clean:
        _copy(archives / "cifar10.zip", split, Path(clean), first, last)
        pluto(["corrupt", clean, "--out", str(out), "--corruptions", ",".join(names), "--severities", severity])


if __name__ == "__main__":
    main()
