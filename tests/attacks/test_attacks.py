"""All attacks in small doses, and the harness that runs them."""

import json
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from attacks import ATTACKS, CATALOGUE, guided, harness
from attacks.__main__ import main
from attacks.harness import Escape, Parser, Task
from attacks.mutate import mutate_bytes, mutate_file, mutate_json, to_safetensors
from attacks.story import Story
from attacks.tally import Found, Tally
from pluto_edge.errors import BundleError, StoreError
from pluto_edge.repository.client import Client

DOSES = {"bundles": 10, "callbacks": 6, "threads": 2, **dict.fromkeys(CATALOGUE, 6)}
PARSERS = ("manifests", "modules", "recordings", "states", "stores")


@pytest.fixture(scope="module")
def tallies() -> dict[str, Tally]:
    """One process for all of them."""
    return harness.run([Task(name, cases=DOSES.get(name, 150)) for name in ATTACKS])


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_escapes(tallies: dict[str, Tally], name: str) -> None:
    tally = tallies[name]
    assert tally.cases == DOSES.get(name, 150)
    assert not tally.escapes, "\n".join(f.kind + "\n" + f.text for kept in tally.escapes.values() for f in kept)


@pytest.mark.parametrize("name", PARSERS)
def test_cases_reach_both_sides_of_the_door(tallies: dict[str, Tally], name: str) -> None:
    """Some are refused and some are not: an attack that never gets in tests no more than its first check."""
    assert 0 < tallies[name].refused < tallies[name].cases


@pytest.mark.parametrize("name", CATALOGUE)
def test_what_a_device_said_is_told(tallies: dict[str, Tally], name: str) -> None:
    """Each case either refuses or, as with files that nobody has signed, has a reason not to."""
    stories = tallies[name].stories.values()
    assert stories and all(story.said and story.tried for story in stories)
    assert all(story.refused for story in stories if story.tried != "files that nobody has signed")


@pytest.mark.parametrize("name", CATALOGUE)
def test_an_attack_that_is_believed_escapes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that says nothing and takes nothing does not pass for one that refuses."""
    monkeypatch.setattr(Client, "pull", lambda self, address, progress=None: tmp_path)
    with harness.load(name).attack(tmp_path) as case, pytest.raises((Escape, BundleError)):
        case(Random(0))


@pytest.mark.parametrize("name", PARSERS)
def test_samples_are_good(tmp_path: Path, name: str) -> None:
    with harness.load(name).parser(tmp_path) as parser:
        for sample in parser.samples:
            parser.parse(sample)


def test_what_escapes_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exceptions, losses, crashes and hangs are told apart, the cases after them are run, and nothing is left."""
    from tests.attacks.planted.escapes import KINDS

    monkeypatch.setattr(harness, "MEMORY_FOLDER", tmp_path)
    expected, seeds = Counter(KINDS), range(len(KINDS))
    assert set(expected) == {0, 1, 2, 3, 4}
    tally = harness.run([Task("escapes", cases=len(seeds))], package="tests.attacks.planted")["escapes"]
    assert (tally.cases, tally.refused, tally.escaped) == (8, expected[0], 8 - expected[0])
    assert list(tmp_path.iterdir()) == []
    counts = tally.counts
    names = (
        "",
        "KeyError at tests/attacks/planted",
        "Escape (something is lost)",
        "crashes with SIGSEGV",
        "hangs for more",
    )
    for number in (1, 2, 3, 4):
        found = [k for k in counts if k.startswith(names[number])]
        assert [counts[k] for k in found] == [expected[number]]
        assert tally.escapes[found[0]][0].seed == KINDS.index(number)


def test_an_attack_that_cannot_be_set_up(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="cannot be set up"):
        harness.run([Task("unopened", cases=1)], package="tests.attacks.planted")
    assert "no such bundle" in capfd.readouterr().err


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guided, "installed", lambda: False)
    assert main(["--only", "recordings", "--minutes", "0.01", "--first", "7"]) == 0
    printed = capsys.readouterr().out
    assert "recordings" in printed and "escapes" in printed and "seeds from 7 on" in printed
    assert main(["--only", "recordings", "--seed", "7"]) == 0
    assert "recordings 7: " in capsys.readouterr().out


def test_an_escape_is_shown_with_its_seed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = Tally(5, 1)
    for seed in (3, 4, 5, 6):
        tally.add(Found("KeyError at x.py:1", seed, "traceback"))
    monkeypatch.setattr(harness, "run", lambda tasks: {tasks[0].name: tally})
    assert main(["--only", "stores", "--cases", "5"]) == 1
    printed = capsys.readouterr().out
    assert "stores, 4 times: KeyError at x.py:1" in printed
    assert "python -m attacks --only stores --seed 3\n" in printed and "--seed 6" not in printed


def test_stories_are_shown_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    told = Tally(3, 2, stories={"an older timestamp": Story(True, "must be >= 3", "an older timestamp")})
    monkeypatch.setattr(harness, "run", lambda tasks: {tasks[0].name: told})
    assert main(["--only", "rollback", "--cases", "3"]) == 0
    assert "\nrollback\n  an older timestamp: refused: must be >= 3\n" in capsys.readouterr().out


def test_a_file_is_parsed_again(tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"{}")
    assert main(["--only", "stores", "--input", str(tmp_path / "input")]) == 0


def test_a_parser_may_refuse() -> None:
    def refuse(data: bytes) -> None:
        raise StoreError("no")

    guided.parse(Parser(refuse, []), b"")
    with pytest.raises(ZeroDivisionError):
        guided.parse(Parser(lambda data: print(1 / len(data)), []), b"")


@pytest.mark.skipif(not guided.installed(), reason="atheris is not installed")
def test_guided(tmp_path: Path) -> None:
    tally = guided.run("recordings", 2, tmp_path / "found")
    assert tally.guided > 0 and not tally.escapes


def test_the_same_seed_is_the_same_case() -> None:
    data = json.dumps({"a": [1, 2, {"b": "c"}], "d": None}).encode()
    for change in (mutate_bytes, mutate_json):
        made = [change(Random(seed), data) for seed in range(50)]
        assert made == [change(Random(seed), data) for seed in range(50)]
        assert len(set(made)) > 25
    file = to_safetensors({})
    assert mutate_file(Random(1), file) == mutate_file(Random(1), file)
