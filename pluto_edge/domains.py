"""Labelled images in whatever form people have them, as folders, which is what `train` and `evaluate` read.

    data = "photos/"                                     # photos/<domain>/<class>/images
    data = {"day": "photos/day", "night": my_dataset}    # for each domain a folder of classes, or a dataset
    data = {"day": {"train": one, "val": another}}       # a dataset for each split

A dataset is anything that gives pairs of an image and a label: a torchvision dataset (without transforms that make
tensors), a list, a generator; or rows with a column of images and one of labels, as Hugging Face's `datasets`
have. A label is a class's name or its number.

Datasets are written down once, as plain PPM files. Training reads images again after an interruption, in other
processes and in other runs, and an evaluation tells by a file's bytes whether its image was trained on: PPM has the
same bytes for the same pixels, whichever library wrote it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from pluto_edge._files import check_name
from pluto_edge._schema import check_once
from pluto_edge.errors import ConfigError, ImageError
from pluto_edge.preprocess import one_rgb, visible_folders

__all__ = ["Dataset", "DomainFolders", "Domains", "as_folders", "domain_folders"]

SPLITS = {"train": "train", "val": "val", "validation": "val", "test": "test"}  # and the folders that they become
IMAGE_COLUMNS = ("image", "img")  # where a dataset does not say of which type its columns are
LABEL_COLUMNS = ("label", "labels")


class Indexed(Protocol):
    """A dataset that is asked for one item after another, as torchvision's are."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Any: ...


Dataset = Iterable[Any] | Indexed
Domains = str | Path | Mapping[str, str | Path | Dataset]


@dataclass(frozen=True)
class DomainFolders:
    """A folder of class folders for every domain. `classes` has their order where it was given or a dataset has
    one; None is the order of their names."""

    folders: Mapping[str, Path]
    classes: tuple[str, ...] | None = None


def domain_folders(root: Path) -> dict[str, Path]:
    """The folders below `root` by name, sorted: each is a domain."""
    if not root.is_dir():
        raise ConfigError(f"{root}: no such folder; want root/<domain>/<class>/images")
    found = {name: root / name for name in visible_folders(root)}
    if not found:
        raise ConfigError(f"{root}: holds no domain folder; want root/<domain>/<class>/images")
    return found


def as_folders(
    data: Domains, place: Path, classes: Sequence[str] | None = None, names: Sequence[str] | None = None
) -> DomainFolders:
    """`data` as folders; what is a dataset is written below `place`.

    Args:
        data: a folder of domain folders, or a folder or dataset for every domain.
        place: where datasets are written. Files that are there already and hold the same image stay untouched, so
            that a run goes on where it was stopped.
        classes: names of the classes, by their numbers. None takes them from the datasets (torchvision's
            `classes`, Hugging Face's `ClassLabel`) or, if these do not say, from the labels.
        names: of a dataset's numbers where neither `classes` nor the dataset have any.
    """
    given = None if classes is None else tuple(classes)
    if given is not None:
        check_once(given, "classes")
    if isinstance(data, str | Path):
        return DomainFolders(domain_folders(Path(data)), given)
    if not isinstance(data, Mapping) or not data:
        raise ConfigError(f"data: want a folder, or a folder or dataset for every domain; got {_kind(data)}")
    folders: dict[str, Path] = {}
    known: list[str] = []
    for name, source in data.items():
        check_name(name, "domain", ConfigError)
        if isinstance(source, str | Path):
            folders[name] = Path(source)
            if not folders[name].is_dir():
                raise ConfigError(f"domain {name}: {source}: no such folder; want <class>/images in it")
        else:
            folders[name] = place / name
            known += _write_domain(name, source, place / name, given, names)
    if all(name.isdecimal() for name in known):  # numbers without names
        known.sort(key=int)
    return DomainFolders(folders, given or tuple(dict.fromkeys(known)) or None)


def _write_domain(
    name: str, source: Any, folder: Path, classes: tuple[str, ...] | None, names: Sequence[str] | None
) -> tuple[str, ...]:
    """Gives the names that the dataset has for its classes, or the numbers where it has no names for them."""
    known: tuple[str, ...] | None = None
    numbers: set[int] = set()
    splits = {"": source}
    if isinstance(source, Mapping):
        unknown = sorted(map(str, set(source) - set(SPLITS)))
        if unknown or "train" not in source or len(source) < 2:
            raise ConfigError(f"domain {name}: want splits named train and val or test, got {', '.join(source)}")
        splits = {SPLITS[part]: dataset for part, dataset in source.items()}
    written: set[Path] = set()
    for part, dataset in splits.items():
        known = known or _classes_of(dataset)
        for number, (image, label) in enumerate(_pairs(name, dataset)):
            where = f"domain {name}: item {number}"
            called = _class(label, classes or known or names, where)
            file = folder / part / called / f"{number:07}.ppm"
            _write_image(file, image, where)
            written.add(file)
            if not isinstance(label, str) and not names:
                numbers.add(index(label))
    for stale in set(folder.rglob("*.ppm")) - written:  # of a larger dataset that had this name
        stale.unlink()
    if not written:
        raise ConfigError(f"domain {name}: the dataset holds no image")
    return known if known is not None else tuple(map(str, numbers))


def _classes_of(dataset: Any) -> tuple[str, ...] | None:
    """The names that a dataset gives to its labels' numbers."""
    named = [f.names for f in _features(dataset).values() if getattr(f, "names", None)]
    names = named[0] if len(named) == 1 else getattr(dataset, "classes", None)
    return None if names is None else tuple(map(str, names))


def _features(dataset: Any) -> Mapping[str, Any]:
    """The types of a dataset's columns, as Hugging Face's `datasets` have them."""
    features = getattr(dataset, "features", None)
    return features if isinstance(features, Mapping) else {}


def _pairs(name: str, dataset: Any) -> Iterator[tuple[Any, Any]]:
    if hasattr(dataset, "__iter__"):
        items: Iterable[Any] = dataset
    elif hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
        items = (dataset[i] for i in range(len(dataset)))
    else:
        raise ConfigError(f"domain {name}: want a folder or a dataset of (image, label), got {_kind(dataset)}")
    columns: tuple[str, str] | None = None
    for number, item in enumerate(items):
        if isinstance(item, Mapping):
            columns = columns or _columns(_features(dataset), item, name)
            yield item[columns[0]], item[columns[1]]
        elif isinstance(item, tuple | list) and len(item) == 2:
            yield item[0], item[1]
        else:
            raise ConfigError(f"domain {name}: item {number}: want (image, label), got {_kind(item)}")


def _columns(features: Mapping[str, Any], row: Mapping[str, Any], name: str) -> tuple[str, str]:
    """Which column has the images, and which the labels."""
    images = [n for n, f in features.items() if type(f).__name__ == "Image"]
    labels = [n for n, f in features.items() if getattr(f, "names", None)]
    images = images or [n for n in IMAGE_COLUMNS if n in row]
    labels = labels or [n for n in LABEL_COLUMNS if n in row]
    for what, found in (("images", images), ("labels", labels)):
        if len(found) != 1:
            raise ConfigError(
                f"domain {name}: want one column of {what}, found {', '.join(found) or 'none'} among "
                f"{', '.join(map(str, row))}; choose with select_columns, or give pairs of image and label"
            )
    return images[0], labels[0]


def _class(label: Any, classes: Sequence[str] | None, where: str) -> str:
    """The class's name, which becomes a folder's."""
    if isinstance(label, str):
        name = label
        if classes is not None and name not in classes:
            raise ConfigError(f"{where}: {name!r} is none of the classes {', '.join(classes[:12])}")
    else:
        try:
            number = index(label)  # of numpy and torch, too
        except TypeError:
            raise ConfigError(f"{where}: want a class's name or number, got {_kind(label)}") from None
        if classes is not None and not 0 <= number < len(classes):
            raise ConfigError(f"{where}: class {number}, but there are {len(classes)} names")
        name = str(number) if classes is None else classes[number]
    if not name or name.startswith(".") or set(name) & set("/\\\0"):
        raise ConfigError(f"{where}: {name!r} cannot be the name of a folder; give other names with `classes`")
    return name


def _write_image(file: Path, image: Any, where: str) -> None:
    if not isinstance(image, str | Path | Image.Image) and not hasattr(image, "dtype"):
        raise ConfigError(f"{where}: want a PIL image, a uint8 array or a path, got {_kind(image)}")
    try:
        rgb = one_rgb(image)
    except ImageError as cause:
        hint = "; leave transforms that make tensors out" if type(image).__name__ == "Tensor" else ""
        raise ImageError(f"{where}: {cause}{hint}") from cause
    data = b"P6\n%d %d\n255\n" % rgb.size + rgb.tobytes()
    if not file.is_file() or file.read_bytes() != data:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def _kind(value: object) -> str:
    return type(value).__name__
