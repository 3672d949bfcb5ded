"""What attacks have found, once each."""

import json
import shutil
from pathlib import Path

import pytest

from attacks.world import BUNDLE
from pluto_edge.errors import BundleError
from pluto_edge.manifest import Bundle


@pytest.mark.parametrize("tolerance", [0.0, -1.0])
def test_a_tolerance_is_positive(tmp_path: Path, tolerance: float) -> None:
    """`pluto info` divided by it."""
    shutil.copytree(BUNDLE, tmp_path / "bundle")
    file = tmp_path / "bundle/manifest.json"
    data = json.loads(file.read_text())
    data["parity"][0]["tolerance"] = tolerance
    file.write_text(json.dumps(data))
    with pytest.raises(BundleError, match=r"parity\[0\]: tolerance: want more than 0"):
        Bundle(tmp_path / "bundle")
