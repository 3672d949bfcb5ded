"""Labelled folders: what is found, how it is split, and what is wrong with them."""

from pathlib import Path

import numpy as np
import pytest

from pluto_edge.errors import ConfigError
from pluto_edge.train.data import corrupted, scan
from tests.shapes import CLASSES, write_domain


def test_split_by_seed(photos: Path) -> None:
    dawn, noon = scan(photos, val_share=0.3)
    assert (dawn.name, noon.name) == ("dawn", "noon")
    assert dawn.classes == CLASSES
    assert len(dawn.train) == 21 and len(dawn.val) == 9
    assert not {s.path for s in dawn.train} & {s.path for s in dawn.val}
    assert scan(photos, val_share=0.3)[0] == dawn
    assert scan(photos, val_share=0.3, seed=1)[0].train != dawn.train
    assert [sum(s.label == c for s in dawn.val) for c in range(3)] == [3, 3, 3]


def test_train_and_val_folders(tmp_path: Path) -> None:
    write_domain(tmp_path / "train", "dawn", 3)
    write_domain(tmp_path / "val", "dawn", 1)
    for part in ("train", "val"):
        target = tmp_path / "root/dawn" / part
        target.parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / part / "dawn").rename(target)
    (domain,) = scan(tmp_path / "root")
    assert len(domain.train) == 9 and len(domain.val) == 3
    assert all("val" in s.path.parts for s in domain.val)


def test_per_class(photos: Path) -> None:
    assert len(scan(photos, per_class=2)[0].train) == 6


def test_corrupted_domains_are_deterministic(photos: Path) -> None:
    clean = scan(photos)[0]
    fog, snow = corrupted(clean, ["fog", "snow"], [3], seed=5)
    assert (fog.name, snow.name) == ("fog-3", "snow-3")
    sample = clean.train[0]
    first, again = np.asarray(fog.read(sample)), np.asarray(fog.read(sample))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, np.asarray(clean.read(sample)))
    other = corrupted(clean, ["fog"], [3], seed=6)[0]
    assert not np.array_equal(first, np.asarray(other.read(sample)))


def test_every_corruption_draws_its_own_images(photos: Path) -> None:
    clean = scan(photos)[0]
    domains = corrupted(clean, ["fog", "snow"], [1, 3], seed=5, per_class=3)
    drawn = [frozenset(d.train) for d in domains]
    assert len(set(drawn)) == 4 and all(d <= set(clean.train) for d in drawn)
    for domain in domains:
        assert [s.label for s in domain.train] == [0] * 3 + [1] * 3 + [2] * 3
        assert domain.val == clean.val, "images that are trained on nowhere"
    assert corrupted(clean, ["snow"], [3], seed=5, per_class=3)[0] == domains[3], "whatever else is asked for"
    assert corrupted(clean, ["snow"], [3], seed=6, per_class=3)[0].train != domains[3].train
    assert corrupted(clean, ["fog"], [1], seed=5)[0].train == clean.train


def test_bad_folders(tmp_path: Path, photos: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        scan(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="holds no domain folder"):
        scan(tmp_path / "empty")
    write_domain(tmp_path / "single", "dawn", classes=("disc",))
    with pytest.raises(ConfigError, match="dawn: want two classes or more, found disc"):
        scan(tmp_path / "single")
    (photos / "noon/disc").rename(photos / "noon/circle")
    with pytest.raises(ConfigError, match=r"same classes; they differ in circle, disc"):
        scan(photos)
    write_domain(tmp_path / "hollow", "dawn", 0)
    with pytest.raises(ConfigError, match="dawn: it has no training image"):
        scan(tmp_path / "hollow")
    write_domain(tmp_path / "gap", "dawn", 3)
    for file in (tmp_path / "gap/dawn/disc").iterdir():
        file.unlink()
    with pytest.raises(ConfigError, match="class 'disc' has no training image"):
        scan(tmp_path / "gap")
    (tmp_path / "taken/generalist/x").mkdir(parents=True)
    with pytest.raises(ConfigError, match="no domain may be named 'generalist'"):
        scan(tmp_path / "taken")
    with pytest.raises(ConfigError, match="not a safe name"):
        (tmp_path / "odd/a domain/x").mkdir(parents=True)
        scan(tmp_path / "odd")
