"""From folders to a published repository, stopped in every stage."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pluto_edge.cli import main
from pluto_edge.errors import ConfigError, RepositoryError
from pluto_edge.evaluate.matrix import read_matrix
from pluto_edge.manifest import Bundle
from pluto_edge.pipeline import build as build_module
from pluto_edge.pipeline.record import Record, Stage, images_digest, read_record, store_digest, write_record
from pluto_edge.repository.publisher import Publisher
from pluto_edge.store import Store
from pluto_edge.train.progress import Silent
from tests import shapes
from tests.pipeline.conftest import Build

EVERYTHING = ("train", "export", "matrix", "add", "publish")


def test_a_build_and_what_is_added_to_it(make_build: Build, photos: Path, tmp_path: Path) -> None:
    first = make_build(photos)
    assert (first.ran, first.release) == (EVERYTHING, "shapes@1")
    assert first.published is not None and not first.published.waiting
    assert make_build(photos).ran == (), "with nothing new nothing is done"
    shapes.write_domain(photos, "night")
    second = make_build(photos, training={"generalist": False})
    assert (second.ran, second.release) == (EVERYTHING, "shapes@2")
    assert (second.matrix.computed, second.matrix.found) == (4 + 2, 6), "its column, and its row of the others"
    publisher = Publisher(tmp_path / "one/repo")
    assert {m.name for m in publisher.modules()} == {"dawn", "noon", "night", "generalist"}
    (channel,) = publisher.channels("shapes")
    assert (channel.channel, channel.versions) == ("stable", ("1", "2"))
    newest = next(r for r in publisher.releases() if r.version == "2")
    assert newest.content == Bundle(tmp_path / "one/work/bundle").hash
    assert "4 modules on 18 held-out images of 3 domains" in newest.notes
    publisher.revoke_release("shapes", "2", "a test")
    with pytest.raises(RepositoryError, match="was revoked"):  # the same content again
        make_build(photos, training={"generalist": False})


class Stop(Silent):
    """Ctrl-C as soon as a task is so far."""

    def __init__(self, task: str, at: int) -> None:
        self.task = task
        self.at = at

    def step(self, task: str, done: int, total: int, note: str = "") -> None:
        if (task, done) == (self.task, self.at):
            raise KeyboardInterrupt


def after(count: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which can be called so many times; then there is a Ctrl-C in its place."""
    calls = iter(range(count))

    def call(*arguments: Any, **more: Any) -> Any:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return function(*arguments, **more)

    return call


def test_a_build_that_is_stopped_in_every_stage(
    make_build: Build, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run is stopped one stage later than the one before; the last one finds all of it."""
    stops: tuple[tuple[dict[str, Any], object, str, int], ...] = (
        ({"progress": Stop("modules trained", 1)}, None, "", 0),
        ({}, build_module, "run_export", 0),
        ({"progress": Stop("domains of the matrix", 1)}, None, "", 0),
        ({}, Publisher, "add_module", 2),
        ({}, Publisher, "add_bundle", 0),
        ({}, Publisher, "publish", 0),
    )
    for more, where, name, count in stops:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            if where is not None:
                patch.setattr(where, name, after(count, getattr(where, name)))
            make_build(photos, **more)
    last = make_build(photos)
    assert (last.ran, last.release) == (("publish",), "shapes@1")
    assert (last.matrix.computed, last.matrix.found) == (0, 6)
    make_build(photos, "whole")
    stopped, whole = tmp_path / "one/work", tmp_path / "whole/work"
    assert Bundle(stopped / "bundle").hash == Bundle(whole / "bundle").hash
    assert read_matrix(stopped / "matrix/matrix.json") == read_matrix(whole / "matrix/matrix.json")
    found, want = (Publisher(tmp_path / name / "repo") for name in ("one", "whole"))
    assert found.releases() == want.releases() and found.modules() == want.modules()


def test_a_module_that_is_no_good_is_not_published(make_build: Build, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"not above --least \(0.999\) on their own domains: .*dawn"):
        make_build(photos, least=0.999)
    publisher = Publisher(tmp_path / "one/repo")
    assert not publisher.releases() and not publisher.modules() and not publisher.roles.staged_roles()
    with pytest.raises(ConfigError, match="--least: want a share"):
        make_build(photos, least=1.5)
    assert make_build(photos, version="1.0", channels=["beta"]).ran == ("add", "publish"), "the rest was there"
    assert publisher.channels("shapes")[0].channel == "beta"


def test_the_command(
    make_build: Build, photos: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        make_build(tmp_path / "nowhere", "cli")  # which makes keys and a repository
    folder = tmp_path / "cli"
    fixed = [
        "--data",
        str(photos),
        "--work",
        str(folder / "work"),
        "--name",
        "shapes",
        "--keys",
        str(folder / "keys"),
    ]
    fixed += ["--backbone", shapes.ARCHITECTURE, "--weights", str(weights), "--image-size", str(shapes.SIZE)]
    fixed += ["--epochs", "1", "--batch", "8", "--threads", "1", "--least", "0"]
    assert main(["build", str(folder / "repo"), *fixed, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["release"], tuple(said["ran"]), said["cells"]["computed"]) == ("shapes@1", EVERYTHING, 6)
    assert main(["build", str(folder / "repo"), *fixed]) == 0
    assert "ran: nothing, all of it was there" in capsys.readouterr().out
    assert main(["build", str(tmp_path / "none"), *fixed]) == 2
    assert "not a repository" in capsys.readouterr().err


# What is recorded


def test_records(tmp_path: Path) -> None:
    file = tmp_path / "build.json"
    assert read_record(file) == Record()
    record = Record().finished("train", Stage("a", "b")).finished("train", Stage("a", "c"))
    write_record(file, record)
    assert read_record(file) == record
    assert record.holds("train", Stage("a", "c"))
    assert not record.holds("train", Stage("a", "b")) and not record.holds("export", Stage("a", "c"))
    file.write_text("{}")
    with pytest.raises(ConfigError, match="schema_version"):
        read_record(file)


def test_digests(photos: Path, make_store: Callable[..., Store]) -> None:
    folders = {f.name: f for f in photos.iterdir()}
    before = images_digest(folders)
    assert images_digest(dict(folders)) == before
    next(photos.rglob("*.png")).unlink()
    assert images_digest(folders) != before
    assert store_digest(photos) == ""
    assert store_digest(make_store().path) != store_digest(make_store(modules=4).path)
