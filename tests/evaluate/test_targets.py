"""Which images, in which order."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pluto_edge.errors import ConfigError, ImageError
from pluto_edge.evaluate.recorded import RecordedNetwork
from pluto_edge.evaluate.targets import LeftOut, TargetStream, arrange, find_targets, prepare
from pluto_edge.preprocess import ImageBatch
from pluto_edge.seen import Seen, hashes_of
from tests.conftest import DOMAINS

CLASSES = tuple(f"class-{i}" for i in range(7))


def test_targets(folders: Path) -> None:
    found = find_targets(folders, [], CLASSES)
    assert {t.name: len(t) for t in found} == DOMAINS
    assert all(CLASSES[label] == f.parent.name for t in found for f, label in zip(t.files, t.labels, strict=True))
    (mixed,) = find_targets(folders, ["noise+other"], CLASSES)
    assert len(mixed) == DOMAINS["noise"] + DOMAINS["other"]
    (few,) = find_targets(folders, ["noise"], CLASSES, limit=10)
    assert len(few) == 10 and few.digest != found[0].digest
    assert few == find_targets(folders, ["noise"], CLASSES, limit=10)[0]


@pytest.mark.parametrize("names", [[], ["class-1"], ["class-0+class-1"]])
def test_a_folder_too_deep_is_no_root(folders: Path, names: list[str]) -> None:
    """Its classes would pass for domains of one class each."""
    with pytest.raises(ConfigError, match=r"is in no class folder.* one level up, --data .*domains0?\b"):
        find_targets(folders / "other", names, CLASSES)


def test_a_domain_may_have_the_name_of_a_class(tmp_path: Path) -> None:
    (tmp_path / "class-1" / "class-0").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "class-1" / "class-0" / "x.png")
    (target,) = find_targets(tmp_path, [], CLASSES)
    assert (target.name, target.labels) == ("class-1", (0,))


def test_only_images_that_were_not_trained_on(tmp_path: Path) -> None:
    for part in ("train", "val", "test"):
        (tmp_path / "d" / part / "class-0").mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "d" / part / "class-0" / f"{part}.png")
        (target,) = find_targets(tmp_path, [], CLASSES)
        assert [f.name for f in target.files] == [f"{part}.png"]


def pictures(folders: Path, *labels: int) -> list[Path]:
    """All images of these classes in the domain `other`: 24 images, of classes 0 to 2 four each, else three."""
    return [f for label in labels for f in sorted((folders / "other" / f"class-{label}").iterdir())]


def seen(train: list[Path], validation: list[Path]) -> Seen:
    return Seen(hashes_of(train), hashes_of(validation))


def test_training_images_are_left_out(folders: Path) -> None:
    learned = pictures(folders, 0)[:3] + pictures(folders, 1)[:1]
    (target,) = find_targets(folders, ["other"], CLASSES, seen=seen(learned, []))
    assert target.left_out == LeftOut(train=4) and len(target) == 20 and not set(target.files) & set(learned)
    assert str(target.left_out) == "4 training images"
    assert all(CLASSES[label] == f.parent.name for f, label in zip(target.files, target.labels, strict=True))
    (plain,) = find_targets(folders, ["other"], CLASSES)
    assert plain.left_out is None and plain.digest != target.digest
    (other,) = find_targets(folders, ["noise"], CLASSES, seen=seen(learned, []))
    assert other.left_out == LeftOut() and str(other.left_out) == "nothing; no image was seen in training"


def test_validation_images_are_left_out_if_every_class_remains(folders: Path) -> None:
    held = pictures(folders, 0)[:3] + pictures(folders, 6)[:2]
    (target,) = find_targets(folders, ["other"], CLASSES, seen=seen(pictures(folders, 1)[:2], held))
    assert target.left_out == LeftOut(train=2, validation=5) and len(target) == 17
    assert str(target.left_out) == "2 training images and 5 validation images"


def test_validation_images_are_used_where_a_class_has_no_others(folders: Path) -> None:
    learned, held = pictures(folders, 0)[:3], pictures(folders, 0)[3:] + pictures(folders, 5)[:1]
    (target,) = find_targets(folders, ["other"], CLASSES, seen=seen(learned, held))
    assert target.left_out == LeftOut(train=3, kept=2) and set(held) < set(target.files)
    assert "2 validation images are used, as a class would have none" in str(target.left_out)


def test_an_image_of_both_parts_was_trained_on(folders: Path) -> None:
    """Its split was another in another run."""
    (target,) = find_targets(
        folders, ["other"], CLASSES, seen=seen(pictures(folders, 0)[:2], pictures(folders, 0)[:3])
    )
    assert target.left_out == LeftOut(train=2, validation=1)


def test_a_class_of_training_images_only_is_named(folders: Path) -> None:
    (target,) = find_targets(folders, ["other"], CLASSES, seen=seen(pictures(folders, 3), pictures(folders, 4)[:1]))
    assert target.left_out == LeftOut(train=3, validation=1, lost=("class-3",))
    assert "no image remains of class-3" in str(target.left_out)


def test_nothing_remains(folders: Path) -> None:
    everything = seen(pictures(folders, *range(7)), [])
    with pytest.raises(ConfigError, match=r"other: all 24 images were trained on, so none remains"):
        find_targets(folders, ["other"], CLASSES, seen=everything)
    (mixed,) = find_targets(folders, ["noise+other"], CLASSES, seen=everything)
    assert mixed.left_out == LeftOut(train=24) and len(mixed) == DOMAINS["noise"]
    (validated,) = find_targets(folders, ["other"], CLASSES, seen=seen([], pictures(folders, *range(7))))
    assert validated.left_out == LeftOut(kept=24) and str(validated.left_out).startswith("nothing; 24 validation")


def test_a_copy_is_the_same_image(folders: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "class-2" / "renamed.png"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(pictures(folders, 0)[0].read_bytes())
    with pytest.raises(ConfigError, match="all 1 images were trained on"):
        find_targets(tmp_path, [], CLASSES, seen=seen(pictures(folders, 0), []))


def test_the_limit_is_of_what_remains(folders: Path) -> None:
    learned = [f for label in range(7) for f in pictures(folders, label)[1:]]
    (target,) = find_targets(folders, ["other"], CLASSES, 7, seen(learned, []))
    assert len(target) == 7 and target.left_out == LeftOut(train=17)


def test_the_digest_is_of_contents(tmp_path: Path) -> None:
    file = tmp_path / "d" / "class-0" / "a.png"
    file.parent.mkdir(parents=True)
    digests = []
    for colour in ("red", "tan", "red"):
        Image.new("RGB", (8, 8), colour).save(file)
        digests.append(find_targets(tmp_path, [], CLASSES)[0].digest)
    assert digests[0] == digests[2] != digests[1]


@pytest.mark.parametrize(
    "names, what",
    [
        (["fog"], "no domain 'fog'; there are: noise, other, source"),
        (["noise+fog"], "'fog'"),
        (["noise"] * 2, "twice"),
    ],
)
def test_wrong_targets(folders: Path, names: list[str], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        find_targets(folders, names, CLASSES)


def test_wrong_folders(folders: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        find_targets(tmp_path / "nowhere", [], CLASSES)
    with pytest.raises(ConfigError, match="holds no domain"):
        find_targets(tmp_path, [], CLASSES)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="holds no image"):
        find_targets(tmp_path, [], CLASSES)
    with pytest.raises(ConfigError, match=r"'class-0' is no class of the bundle.*cat, dog"):
        find_targets(folders, [], ("cat", "dog"))


def test_a_broken_image_is_named(make_network: Callable[..., RecordedNetwork], tmp_path: Path) -> None:
    file = tmp_path / "d" / "class-0" / "broken.png"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"not a picture")
    (target,) = find_targets(tmp_path, [], CLASSES)
    with pytest.raises(ImageError, match=r"broken\.png: not a readable image"):
        prepare(target, make_network().bundle.manifest.preprocessing, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.npy"))


def test_pixels_are_the_runtimes(
    make_network: Callable[..., RecordedNetwork], make_stream: Callable[..., TargetStream]
) -> None:
    network = make_network()
    stream = make_stream(network, "other")
    images = [Image.open(f).convert("RGB") for f in stream.target.files]
    plain = ImageBatch(images, network.bundle.manifest.preprocessing)
    (batch,) = stream.batches(np.arange(len(images)), 100)
    assert np.array_equal(batch[3:9], plain[3:9])
    index = np.array([7, 2])
    assert np.array_equal(batch.take(index), plain.take(index))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(0, 2**31))
def test_orders_are_permutations(labels: list[int], seed: int) -> None:
    for order in ("shuffled", "classes"):
        found = arrange(labels, order, seed)  # type: ignore[arg-type]
        assert sorted(found) == list(range(len(labels)))
        assert np.array_equal(found, arrange(labels, order, seed))  # type: ignore[arg-type]
    stream = np.array(labels)[arrange(labels, "classes", seed)]
    assert (np.diff(stream) != 0).sum() == len(set(labels)) - 1, "a class comes in one run"


def test_two_processes_may_prepare_the_same_folder(
    folders: Path, make_network: Callable[..., RecordedNetwork], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, preprocessing = find_targets(folders, [], CLASSES)[0], make_network().bundle.manifest.preprocessing
    others = []

    def meanwhile(count: int) -> None:
        if not others:
            others.append(count)
            with monkeypatch.context() as patch:
                patch.setattr("os.getpid", lambda: 1)
                others.append(prepare(target, preprocessing, tmp_path / "cache").pixels.copy())

    first = prepare(target, preprocessing, tmp_path / "cache", meanwhile)
    np.testing.assert_array_equal(first.pixels, others[1])
    assert [f.suffix for f in (tmp_path / "cache").iterdir()] == [".npy"]
