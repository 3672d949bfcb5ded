"""What Prometheus and OpenTelemetry are told: names, units, labels, numbers."""

import gzip
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pluto_edge.runtime.types import Point
from pluto_edge.service import instruments
from pluto_edge.service.instruments import INSTRUMENTS, MAX_MODULES, CameraReading, Reading
from pluto_edge.service.otel import Telemetry, to_collector
from pluto_edge.service.prometheus import Exposition
from tests.service.conftest import Scripted, Serve, Write, camera, frames, wait_for

parser = pytest.importorskip("prometheus_client.parser")
export = pytest.importorskip("opentelemetry.sdk.metrics.export")

ROOT = Path(__file__).parent.parent.parent


def samples(exposition: Exposition) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = exposition.text()[0].decode()
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in parser.text_string_to_metric_families(text)
        for s in family.samples
    }


def value(exposition: Exposition, name: str, **labels: str) -> float:
    return samples(exposition)[name, tuple(sorted(labels.items()))]


def test_the_numbers(serve: Serve, write: Write, script: Scripted) -> None:
    script.dead.add("yard")
    service = serve(write(camera("gate"), camera("yard")))
    exposition = Exposition(service)
    wait_for(lambda: sum(v for (name, _), v in samples(exposition).items() if name == "pluto_steps_total") > 0)
    wait_for(lambda: value(exposition, "pluto_prediction_seconds_count", camera="gate") > 20)
    assert value(exposition, "pluto_frames_total", camera="gate") <= frames(service, "gate")
    assert value(exposition, "pluto_source_up", camera="gate") == 1
    assert value(exposition, "pluto_source_up", camera="yard") == 0
    assert value(exposition, "pluto_camera_trouble", camera="yard", trouble="lost") == 1
    wait_for(lambda: value(exposition, "pluto_learning_seconds_total", camera="gate") > 0)
    assert 0 <= value(exposition, "pluto_entropy_ratio", camera="gate") <= 1
    compared = ("pluto_disagreement_ratio", (("camera", "gate"),))
    wait_for(lambda: 0 <= samples(exposition).get(compared, -1) <= 1)  # every 16th frame is
    said = samples(exposition)
    weights = [v for (name, labels), v in said.items() if name == "pluto_module_weight"]
    assert sum(weights) == pytest.approx(1, abs=1e-3)
    assert ("pluto_last_frame_timestamp_seconds", (("camera", "yard"),)) not in said
    (bundle,) = [dict(labels) for name, labels in said if name == "pluto_bundle_info"]
    assert bundle["bundle"] == service.runtime.bundle.hash
    assert [name for name, _ in said if name == "pluto_build_info"]
    assert [name for name, _ in said if name == "process_resident_memory_bytes"]


def test_cameras_that_are_gone_have_no_series(serve: Serve, write: Write) -> None:
    service = serve(write(camera("gate"), camera("yard")))
    exposition = Exposition(service)
    wait_for(lambda: ("pluto_prediction_seconds_count", (("camera", "yard"),)) in samples(exposition))
    write(camera("gate"))
    service.reload()
    assert not [labels for _, labels in samples(exposition) if ("camera", "yard") in labels]


def test_names_and_units_are_as_prometheus_wants_them() -> None:
    for instrument in INSTRUMENTS:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", instrument.name)
        assert instrument.unit in ("", "seconds", "ratio")
        assert instrument.help.endswith(".") and not instrument.name.endswith(("_total", "_count", "_sum"))
    assert len({i.name for i in INSTRUMENTS}) == len(INSTRUMENTS)


def test_every_instrument_is_in_the_document() -> None:
    text = (ROOT / "docs/serve.md").read_text()
    for i in INSTRUMENTS:
        name = "_".join(filter(None, ("pluto", i.name, i.unit))) + ("_total" if i.kind == "counter" else "")
        assert f"`{name}`" in text, name
    assert "`pluto_prediction_seconds`" in text


def test_labels_are_bounded() -> None:
    names = tuple(f"m{i:03}" for i in range(100))
    weights = tuple(i / 4950 for i in range(100))
    point = Point(1, 0.0, 0, 0.5, names, weights)
    reading = CameraReading("gate", "fine", None, {}, (point, point), 7, None)  # type: ignore[arg-type]
    found = dict(instruments._weights(Reading(None, (reading,))))  # type: ignore[arg-type]
    assert len(found) == MAX_MODULES + 1
    assert sum(found.values()) == pytest.approx(1)
    assert found["gate", "m099"] == pytest.approx(99 / 4950) and ("gate", "m000") not in found


# OpenTelemetry


def observed(reader: object) -> dict[str, list]:
    data = reader.get_metrics_data()
    metrics = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics]
    return {m.name: list(m.data.data_points) for m in metrics}


def test_the_same_through_opentelemetry(serve: Serve, write: Write) -> None:
    service = serve(write(camera("gate")))
    reader = export.InMemoryMetricReader()
    telemetry = Telemetry(service, [reader])
    wait_for(lambda: frames(service, "gate") > 20 and "pluto.disagreement" in observed(reader))
    said = observed(reader)
    missing = {f"pluto.{i.name}" for i in INSTRUMENTS} | {"pluto.prediction"}
    absent = {"pluto.misfit", "pluto.bundle_trial_frames", "pluto.modules_found"}  # no signatures, and no trials
    assert missing - said.keys() <= absent
    (point,) = said["pluto.frames"]
    assert dict(point.attributes) == {"camera": "gate"} and 20 < point.value <= frames(service, "gate")
    (histogram,) = said["pluto.prediction"]
    assert tuple(histogram.explicit_bounds) == instruments.BUCKETS and histogram.count > 0
    telemetry.close()


def test_a_collector_is_sent_them(serve: Serve, write: Write) -> None:
    got: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        service = serve(write(camera("gate")))
        telemetry = Telemetry(service, [to_collector(f"http://127.0.0.1:{server.server_port}/v1/metrics")])
        wait_for(lambda: frames(service, "gate") > 3)
        telemetry.close()  # sends what is left
        server.shutdown()
    assert got and b"pluto.frames" in got[-1] and b"pluto.camera_trouble" in got[-1]


def test_a_collector_that_is_not_there_is_no_reason_to_end(serve: Serve, write: Write) -> None:
    service = serve(write(camera("gate")))
    Telemetry(service, [to_collector("http://127.0.0.1:9/v1/metrics")]).close()
    wait_for(lambda: frames(service, "gate") > 3)
