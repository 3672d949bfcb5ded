"""Dashboard and alerts: every expression is one, and a real Prometheus that scrapes a service answers them."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from pluto_edge.service.instruments import INSTRUMENTS
from pluto_edge.service.service import Service
from pluto_edge.service.web import Web
from tests.service.conftest import Scripted, Write, camera, script, wait_for, write

__all__ = ["script", "write"]  # fixtures

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
RULES = DEPLOY / "prometheus"
DASHBOARD = json.loads((DEPLOY / "grafana/pluto.json").read_text())
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None or shutil.which("prometheus") is None,
    reason="Prometheus is not installed (Debian: apt-get install --no-install-recommends prometheus)",
)
# what has no value in a few seconds of two random cameras: signs that need signatures, and what has not happened
SILENT = ("pluto_misfit_ratio", "pluto_camera_trouble", "changes(", "bundle_trial", "modules_found")


def expressions() -> dict[str, str]:
    """Of the dashboard, with Grafana's variables as it would fill them in."""
    targets = [t["expr"] for panel in DASHBOARD["panels"] for t in panel["targets"]]
    found = targets + [a["expr"] for a in DASHBOARD["annotations"]["list"]]
    filled = {"$instance": ".*", "$camera": ".*", "$__rate_interval": "10s"}
    return {text: re.sub("|".join(map(re.escape, filled)), lambda m: filled[m[0]], text) for text in found}


def alerts() -> list[str]:
    text = (RULES / "alerts.yml").read_text()
    return [e.strip().removeprefix(">-") for e in re.findall(r"expr: (.*?)\n +(?:for|labels):", text, flags=re.S)]


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\bpluto_[a-z_]+", text))


def known() -> set[str]:
    own = {
        "_".join(filter(None, ("pluto", i.name, i.unit))) + ("_total" if i.kind == "counter" else "")
        for i in INSTRUMENTS
    }
    return own | {"pluto_prediction_seconds_bucket"}


def test_they_ask_for_what_there_is() -> None:
    assert len(expressions()) > 25 and len(alerts()) == 14
    for text in (*expressions(), *alerts()):
        assert names_in(text) <= known() and (names_in(text) or "process_" in text or "up{" in text)


def test_the_dashboard_shows_every_instrument() -> None:
    assert names_in(" ".join(expressions())) == known()


def test_panels_do_not_overlap() -> None:
    places = [p["gridPos"] for p in DASHBOARD["panels"]]
    cells = [(x, y) for g in places for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    assert len({p["id"] for p in DASHBOARD["panels"]}) == len(places)


def test_every_alert_is_in_the_document() -> None:
    text = (DEPLOY.parent / "docs/serve.md").read_text()
    for name in re.findall(r"alert: (\w+)", (RULES / "alerts.yml").read_text()):
        assert f"`{name}`" in text, name


@needs_promtool
@pytest.mark.parametrize(
    "arguments",
    [("check", "config", "prometheus.yml"), ("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")],
    ids=" ".join,
)
def test_promtool_accepts_them(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *arguments], cwd=RULES, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test() -> None:
    rules, tests = ((RULES / name).read_text() for name in ("alerts.yml", "alerts_test.yml"))
    fired = re.findall(r"alertname: (\w+)\n +exp_alerts:", tests)
    assert set(re.findall(r"alert: (\w+)", rules)) == set(fired)


class Prometheus:
    """A real one, asked by its HTTP API."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def ask(self, path: str) -> dict:
        with urlopen(f"{self._url}{path}", timeout=10) as reply:
            return json.load(reply)["data"]

    def query(self, expression: str) -> list:
        return self.ask(f"/api/v1/query?query={quote(expression)}")["result"]

    @property
    def ready(self) -> bool:
        try:
            with urlopen(f"{self._url}/-/ready", timeout=1) as reply:
                return reply.status == 200
        except OSError:
            return False


@pytest.fixture
def web(write: Write, script: Scripted) -> Iterator[Web]:
    script.dead.add("yard")
    service = Service(write(camera("gate"), camera("yard"), save_every=1), script)
    with Web(service) as web, service:
        yield web


@pytest.fixture
def prometheus(web: Web, tmp_path: Path) -> Iterator[Prometheus]:
    text = (RULES / "prometheus.yml").read_text().replace("127.0.0.1:8765", f"127.0.0.1:{web.server.port}")
    (tmp_path / "prometheus.yml").write_text(text.replace("15s", "1s"))
    shutil.copy(RULES / "alerts.yml", tmp_path)
    port = _free_port()
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        found = Prometheus(port)
        wait_for(lambda: found.ready)
        yield found
    finally:
        process.terminate()
        process.wait(30)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@needs_promtool
def test_a_real_prometheus_scrapes_a_service(web: Web, prometheus: Prometheus) -> None:
    wait_for(lambda: prometheus.query('up{job="pluto"} == 1'))
    wait_for(lambda: prometheus.query('rate(pluto_frames_total{camera="gate"}[10s]) > 0'))
    wait_for(lambda: prometheus.query("sum(increase(pluto_steps_total[10s])) > 0"))
    wait_for(lambda: prometheus.query("pluto_disagreement_ratio"))
    (target,) = prometheus.ask("/api/v1/targets")["activeTargets"]
    assert target["health"] == "up" and target["lastError"] == ""
    empty = []
    for text, filled in expressions().items():
        if not prometheus.query(filled):  # one that does not parse is an HTTP error
            empty.append(text)
    assert [text for text in empty if not any(word in text for word in SILENT)] == []
    for text in alerts():
        prometheus.query(text)
    rules = prometheus.ask("/api/v1/rules")["groups"][0]["rules"]
    assert len(rules) == 14
    wait_for(lambda: lost(prometheus))


def lost(prometheus: Prometheus) -> list:
    found = prometheus.ask("/api/v1/alerts")["alerts"]
    return [a for a in found if a["labels"]["alertname"] == "PlutoCameraLost" and a["labels"]["camera"] == "yard"]
