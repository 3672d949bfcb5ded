"""What attacks have found, once each."""

import shutil
from pathlib import Path

import pytest

from attacks.world import BUNDLE
from pluto_edge.errors import BundleError
from pluto_edge.manifest import Bundle
from tests.bundles import edit


@pytest.mark.parametrize("tolerance", [0.0, -1.0])
def test_a_tolerance_is_positive(tmp_path: Path, tolerance: float) -> None:
    """`pluto info` divided by it."""
    shutil.copytree(BUNDLE, tmp_path / "bundle")
    edit(tmp_path / "bundle", lambda manifest: manifest["parity"][0].update(tolerance=tolerance))
    with pytest.raises(BundleError, match=r"parity\[0\]: tolerance: want more than 0"):
        Bundle(tmp_path / "bundle")
