"""benchmarks/fleet.py: a small fleet follows its channel there and back, and what goes wrong is shown."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import fleet_report
import pytest
from fleet_networks import NETWORKS, URL, Weather, Wire, outages
from fleet_releases import publications
from fleet_report import Change, Kind, Run
from fleet_states import States, start
from tuf.api.exceptions import DownloadError

ROOT = Path(__file__).parents[2]
RUN = Run(
    hours=[1.0, 4.0, 5.0, 8.0],
    bundle_bytes=1000,
    kinds={"good": Kind(2, 16, 0, 0, 64, 10, 20), "lossy": Kind(1, 8, 1, 0, 32, 5, 15)},
    histories=[
        ("good", [Change(0.0, "1.0"), Change(1.5, "1.1"), Change(4.2, "1.2"), Change(5.5, "1.1")]),
        ("good", [Change(0.0, "1.0"), Change(2.0, "1.1")]),
        ("lossy", [Change(0.0, "1.0")]),
    ],
    problems={},
    client_runs={"killed": 1},
    states_verified=3,
    outcomes_compared=1,
    outcomes_that_differed=0,
    busiest_bytes=9,
    processor_seconds=1.0,
)


def test_a_fleet(
    make_bundle: Callable[..., Path],
    tmp_path: Path,
) -> None:
    # a process of its own: it kills others, says nothing in the log, and `fleet` is also the name of a package
    command = [sys.executable, "benchmarks/fleet.py", "--devices", "200", "--quick"]
    command += ["--bundle", str(make_bundle()), "--out", str(tmp_path)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "without a working runtime    never" in said
    found = json.loads((tmp_path / "fleet.json").read_text())
    assert found["devices"] == 200 and {k: v["devices"] for k, v in found["kinds"].items()} == {
        kind: round(200 * network.share) for kind, network in NETWORKS.items()
    }
    assert found["took_the_bad_release"]["good"] == 180
    assert found["release_at_the_end"]["1.2"] == 0, "all that were asked again are back"
    assert found["hours_until_share_has_the_release"]["good"]["100"] < 1.2
    assert found["bytes"]["updates"] < found["bytes"]["whole_bundles"] / 5
    assert {"nothing goes wrong", "killed", "on a bad network"} <= set(found["client_runs"])
    assert found["outcomes"]["compared"] > 0 and not found["outcomes"]["differed"]
    assert (tmp_path / "fleet.png").read_bytes().startswith(b"\x89PNG")


def test_a_device_that_does_not_start_is_noticed(make_bundle: Callable[..., Path], tmp_path: Path) -> None:
    """Else that none was found would say nothing."""
    served, root = publications(make_bundle(), tmp_path)
    states = States(tmp_path / "states")
    whole = states.factory(served[0].files, root)
    assert states.facts(whole).version == "1.0" and not states.facts(whole).problem
    outcome = states.poll_in(whole, {}, Weather(0, 1e9), Random(0))
    assert "404" in outcome.said and outcome.state == whole, "what is here stays"
    (name,) = (tmp_path / "states" / whole).rglob("meter@stable.json")
    name.write_text("{}")
    assert start(tmp_path / "states" / whole).problem == "there is no bundle"


def test_figures() -> None:
    text, figures = fleet_report.summary(RUN)
    assert figures["hours_until_share_has_the_release"]["good"] == {"50": 0.5, "90": 1.0, "99": 1.0, "100": 1.0}
    assert figures["hours_until_share_has_the_release"]["lossy"]["50"] is None
    assert figures["took_the_bad_release"] == {"good": 1, "lossy": 0, "all": 1}
    assert figures["hours_from_revocation_until_share_is_back"]["all"]["100"] == 0.5
    assert figures["moves_from_one_release_to_another"] == 4
    assert figures["bytes"]["whole_bundles"] == 4000 and figures["bytes"]["updates"] == 35
    assert "never" in text
    assert "half a file: 2" in fleet_report.summary(replace(RUN, problems={"half a file": 2}))[0]


def test_shares_over_time() -> None:
    found = fleet_report.shares(RUN, "all", [0.5, 1.6, 4.5, 6.0])
    assert [round(share) for share in found["1.0"]] == [100, 67, 33, 33]
    assert [round(share) for share in found["1.2"]] == [0, 0, 33, 0]


def test_a_wire_takes_time_and_breaks() -> None:
    files = {"blobs/a": bytes(50_000)}
    good = Wire(files, Weather(2.0, 10_000), Random(0))
    assert b"".join(good.open(f"{URL}/blobs/a", 10_000, 30).chunks) == bytes(40_000)
    assert (good.now, good.bytes, good.requests) == (6.0, 40_000, 1)
    broken = Wire(files, Weather(0, 1e9, breaks=1.0), Random(0))
    with pytest.raises(DownloadError):
        list(broken.open(f"{URL}/blobs/a", 0, 30).chunks)
    cut = Wire(files, Weather(0, 1e9, cut=1.0), Random(0))
    assert len(b"".join(cut.open(f"{URL}/blobs/a", 0, 30).chunks)) < 50_000
    flipped = Wire(files, Weather(0, 1e9, flipped=1.0), Random(0))
    assert sum(map(bool, b"".join(flipped.open(f"{URL}/blobs/a", 0, 30).chunks))) == 1


def test_outages_come_and_go() -> None:
    found = outages(Random(3), 100 * 3600.0)
    assert len(found) > 5
    for before, after in pairwise(found):
        assert before[1] < after[0] < after[1]
