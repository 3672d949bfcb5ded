"""Every module on every domain: the numbers, what is kept, what an addition costs, and who is like whom."""

import json
import shutil
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image
from safetensors.numpy import load_file, save_file

from pluto_edge import _heat_map
from pluto_edge.cli import main
from pluto_edge.errors import ConfigError, MissingExtraError
from pluto_edge.evaluate.cells import NOTHING
from pluto_edge.evaluate.likeness import agreement, cluster_order, likeness
from pluto_edge.evaluate.matrix import Matrix, Nearest, read_matrix, run_matrix
from pluto_edge.evaluate.recorded import RecordedNetwork
from pluto_edge.evaluate.targets import TargetStream
from pluto_edge.manifest import SEEN
from pluto_edge.seen import Seen, hashes_of, write_seen
from pluto_edge.train.jobs import Workers
from pluto_edge.train.progress import Silent
from tests.bundles import edit, seal
from tests.conftest import DOMAINS

ONE = Workers(threads=1)
TWINS = (("domain-0", "domain-2"), ("domain-2", "domain-0"))


def cells(out: Path) -> dict[Path, int]:
    """Every cell that is there, and when it was written."""
    return {p.relative_to(out): p.stat().st_mtime_ns for p in (out / "cells").rglob("*.json")}


def test_numbers_are_those_of_the_network(
    make_network: Callable[..., RecordedNetwork],
    make_stream: Callable[..., TargetStream],
    folders: Path,
    tmp_path: Path,
) -> None:
    network = make_network()
    run = run_matrix(network.bundle.path, folders, tmp_path / "m", workers=ONE)
    assert (run.computed, run.found) == (9, 0)
    assert {d.name: d.images for d in run.matrix.domains} == DOMAINS
    for name in DOMAINS:
        stream = make_stream(network, name)
        assert stream.outputs is not None
        right = stream.outputs.logits.argmax(axis=2) == np.array(stream.target.labels)[:, np.newaxis]
        want = dict(zip(network.modules, right.mean(axis=0), strict=True))
        assert run.matrix.column(name) == pytest.approx(want, abs=5e-5)
    assert read_matrix(tmp_path / "m/matrix.json") == run.matrix
    assert "| source | 30 |" in (tmp_path / "m/matrix.md").read_text()
    with Image.open(tmp_path / "m/matrix.png") as picture:
        assert picture.width > 300


def test_a_domain_with_a_module_has_agreements(broken: Path, folders: Path, tmp_path: Path) -> None:
    """The first and the last module are one and the same here."""
    shutil.copy(broken / "modules/domain-0.safetensors", broken / "modules/domain-2.safetensors")
    seal(broken, "modules/domain-2.safetensors")
    data = {"other": folders / "other", "domain-0": folders / "noise"}
    matrix = run_matrix(broken, data, tmp_path / "m", workers=ONE).matrix
    assert [d.name for d in matrix.domains] == ["domain-0", "other"], "those that have a module come first"
    assert matrix.names in {("domain-1", *twins) for twins in TWINS} | {(*twins, "domain-1") for twins in TWINS}
    found = dict(zip(matrix.names, matrix.agreement, strict=True))
    assert found["domain-0"] == found["domain-2"] == (1.0, None)
    share, none = found["domain-1"]
    assert share is not None and 0 <= share < 1 and none is None
    assert matrix.nearest["domain-0"] == Nearest("domain-2", 1.0)
    assert matrix.nearest["domain-2"] == Nearest("domain-0", 1.0)


class Stop(Silent):
    """Ctrl-C as soon as so many domains are done."""

    def __init__(self, after: int) -> None:
        self.after = after

    def step(self, task: str, done: int, total: int, note: str = "") -> None:
        if task == "domains of the matrix" and done == self.after:
            raise KeyboardInterrupt


def test_a_stopped_run_goes_on(make_bundle: Callable[..., Path], folders: Path, tmp_path: Path) -> None:
    out = tmp_path / "m"
    with pytest.raises(KeyboardInterrupt):
        run_matrix(make_bundle(), folders, out, workers=ONE, progress=Stop(1))
    before = cells(out)
    assert {p.parts[1] for p in before} == {"noise"} and len(before) == 3, "the longest domain is the first"
    assert not (out / "matrix.json").exists()
    run = run_matrix(make_bundle(), folders, out, workers=ONE)
    assert (run.computed, run.found) == (6, 3)
    assert before.items() <= cells(out).items(), "nothing is written twice"
    run_matrix(make_bundle(), folders, tmp_path / "whole", workers=Workers(jobs=2, threads=1))
    assert (tmp_path / "whole/matrix.json").read_bytes() == (out / "matrix.json").read_bytes()


def test_what_is_added_costs_a_row_or_a_column(
    make_bundle: Callable[..., Path], folders: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(folders, data)
    shutil.move(data / "noise", tmp_path / "noise")
    out = tmp_path / "m"

    def cost(modules: int) -> tuple[int, int]:
        run = run_matrix(make_bundle(modules=modules), data, out, workers=ONE, force=False)
        return run.computed, run.found

    assert cost(3) == (6, 0)
    assert cost(4) == (2, 6)  # a module more
    shutil.move(tmp_path / "noise", data / "noise")
    assert cost(4) == (4, 8)  # a domain more
    assert cost(4) == (0, 12)
    file = next((data / "other").rglob("*.png"))
    Image.new("RGB", (44, 50), (9, 8, 7)).save(file)
    assert cost(4) == (4, 8)  # another image in one domain
    shutil.copytree(data, tmp_path / "moved")
    assert run_matrix(make_bundle(), tmp_path / "moved", out, workers=ONE).computed == 0, (
        "where it is does not count"
    )
    assert run_matrix(make_bundle(), data, out, workers=ONE, limit=5).computed == 9


def test_images_that_were_seen_are_left_out(broken: Path, folders: Path, tmp_path: Path) -> None:
    files = sorted((folders / "other" / "class-0").iterdir())
    write_seen(broken / SEEN, Seen(hashes_of(files[:2]), hashes_of([])))
    edit(broken, lambda m: m["files"].update({SEEN: {"sha256": 64 * "0", "size": 0}}))
    seal(broken, SEEN)
    matrix = run_matrix(broken, folders, tmp_path / "m", workers=ONE, target="other").matrix
    (domain,) = matrix.domains
    assert domain.images == DOMAINS["other"] - 2
    assert domain.left_out is not None and domain.left_out.train == 2


def test_a_module_that_says_nothing(broken: Path, folders: Path, tmp_path: Path) -> None:
    """Its logits are infinite: it is wrong, agrees with nobody, and stops nothing."""
    name = "modules/domain-1.safetensors"
    tensors = load_file(broken / name)
    tensors["head_weight"].fill(3e38)
    save_file(tensors, broken / name)
    seal(broken, name)
    matrix = run_matrix(broken, {"domain-1": folders / "other"}, tmp_path / "m", workers=ONE).matrix
    assert matrix.row("domain-1") == {"domain-1": 0.0}
    assert max(matrix.column("domain-1").values()) > 0
    assert [row[0] for row in matrix.agreement] == [0.0, 0.0, 0.0]
    assert "domain-1" not in matrix.nearest


def test_a_damaged_cell_is_named(make_bundle: Callable[..., Path], folders: Path, tmp_path: Path) -> None:
    out = tmp_path / "m"
    run_matrix(make_bundle(), folders, out, workers=ONE)
    cell = min((out / "cells").rglob("*.json"))
    data = json.loads(cell.read_text())
    cell.write_text(json.dumps({**data, "predicted": data["predicted"][1:]}))
    with pytest.raises(ConfigError, match=rf"{cell.name}: is not of these \d+ images; delete the file"):
        run_matrix(make_bundle(), folders, out, workers=ONE)
    cell.unlink()
    assert run_matrix(make_bundle(), folders, out, workers=ONE).computed == 1


def test_the_matrix_of_another_backbone_stays(
    make_bundle: Callable[..., Path], folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed = ["--data", str(folders), "--out", str(tmp_path / "m"), "--threads", "1"]
    assert main(["matrix", str(make_bundle()), *fixed, "--json"]) == 0
    before = (tmp_path / "m/matrix.json").read_bytes()
    assert json.loads(capsys.readouterr().out) == json.loads(before)
    assert main(["matrix", str(make_bundle("adapter")), *fixed]) == 2
    assert "is the matrix of another backbone's modules; overwrite it with --force" in capsys.readouterr().err
    assert (tmp_path / "m/matrix.json").read_bytes() == before
    assert main(["matrix", str(make_bundle("adapter")), *fixed, "--force"]) == 0
    said = capsys.readouterr().out
    assert "cells: 9 computed, 0 found" in said and (tmp_path / "m/matrix.json").read_bytes() != before
    for wrong, message in (
        (["--limit", "0"], "--limit: want at least 1"),
        (["--target", "nois"], "did you mean noise"),
    ):
        assert main(["matrix", str(make_bundle()), *fixed, *wrong]) == 2
        assert message in capsys.readouterr().err


def test_what_draws_is_asked_for_before_anything_is_computed(
    make_bundle: Callable[..., Path], folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "scipy.cluster.hierarchy", None)
    with pytest.raises(MissingExtraError, match=r'scipy is not installed; run: pip install "pluto-edge\[matrix\]"'):
        run_matrix(make_bundle(), folders, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_matrix_has_a_value_for_every_pair(
    make_bundle: Callable[..., Path], folders: Path, tmp_path: Path
) -> None:
    matrix = run_matrix(make_bundle(), folders, tmp_path / "m", workers=ONE, target="other").matrix
    data = {**vars(matrix), "accuracy": matrix.accuracy[1:]}
    with pytest.raises(ConfigError, match="accuracy: want 3 rows of 1 values"):
        Matrix(**data)


# Who is like whom

said = arrays.arrays(np.int64, st.tuples(st.integers(1, 12), st.integers(1, 9)), elements=st.integers(NOTHING, 3))


@given(said)
def test_likeness(predicted: np.ndarray) -> None:
    alike = likeness([predicted])
    np.testing.assert_array_equal(alike, alike.T)
    np.testing.assert_allclose(np.diag(alike), (predicted != NOTHING).mean(axis=1))
    np.testing.assert_array_equal(alike[0], agreement(predicted, predicted[0]))
    assert sorted(cluster_order(alike)) == list(range(len(predicted)))


def test_every_domain_counts_alike() -> None:
    large, small = np.array([[1] * 9, [1] * 9]), np.array([[1], [2]])
    np.testing.assert_allclose(likeness([large, small])[0, 1], 0.5)


@given(st.permutations(range(12)))
def test_what_is_alike_is_put_together(order: list[int]) -> None:
    """Three groups, shuffled: each is found whole again."""
    group = np.repeat([0, 1, 2], 4)[np.array(order)]
    alike = np.where(group[:, np.newaxis] == group, 0.9, 0.2)
    np.fill_diagonal(alike, 1)
    found = group[cluster_order(alike)]
    assert (np.diff(found) != 0).sum() == 2


# The picture


@pytest.mark.parametrize("count", [2, 24, 25, 75, 200])
def test_a_picture_of_any_size_can_be_looked_at(count: int) -> None:
    names = [f"brightness-{i}" for i in range(count)]
    values = np.linspace(0, 1, count**2).reshape(count, count)
    with Image.open(BytesIO(_heat_map.heat_map(names, names, values.tolist(), "domain", "module"))) as picture:
        assert max(picture.size) < 2600 and min(picture.size) > 200
