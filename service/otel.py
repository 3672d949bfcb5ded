"""The same instruments through OpenTelemetry, sent to a collector by OTLP over HTTP (extra `[otel]`)."""

import logging
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from pluto_edge.errors import MissingExtraError
from pluto_edge.service.instruments import BUCKETS, INSTRUMENTS, PREDICTION, Instrument, Reading
from pluto_edge.service.service import Service
from pluto_edge.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from opentelemetry.sdk.metrics.export import MetricReader

__all__ = ["Telemetry", "to_collector"]

FRESH = 0.5  # seconds that one reading serves all instruments: an export asks each of them
PATIENCE = 2000  # milliseconds for the last export, when the service ends
UNITS = {"seconds": "s", "ratio": "1", "": "1"}

log = logging.getLogger("pluto_edge.service")


def to_collector(address: str) -> "MetricReader":
    """Sends to the collector at this address once a minute, or as OTEL_METRIC_EXPORT_INTERVAL says."""
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    except ImportError as cause:
        raise MissingExtraError("opentelemetry-sdk", "otel") from cause
    return PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=address))


class Telemetry:
    """A service's instruments in a provider of their own, until `close`; readers decide where they go."""

    def __init__(self, service: Service, readers: Sequence["MetricReader"]) -> None:
        try:
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.resources import Resource
        except ImportError as cause:
            raise MissingExtraError("opentelemetry-sdk", "otel") from cause
        self._service = service
        self._reading: Reading | None = None
        self._read_at = 0.0
        resource = Resource.create({"service.name": "pluto-edge", "service.version": VERSION})
        self._provider = MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)
        meter = self._provider.get_meter("pluto_edge", VERSION)
        for instrument in INSTRUMENTS:
            self._add(meter, instrument)
        name, unit, help = PREDICTION
        self._seconds = meter.create_histogram(
            f"pluto.{name}", UNITS[unit], help, explicit_bucket_boundaries_advisory=BUCKETS
        )
        service.on_prediction(self._predicted)

    def close(self) -> None:
        """Send what is left, if the collector is there."""
        try:
            self._provider.shutdown(PATIENCE)
        except Exception as error:  # of whatever kind a reader raises: nothing depends on it
            log.warning("OpenTelemetry: %s", error)

    def _add(self, meter: "Meter", instrument: Instrument) -> None:
        make = meter.create_observable_counter if instrument.kind == "counter" else meter.create_observable_gauge
        make(f"pluto.{instrument.name}", [self._callback(instrument)], UNITS[instrument.unit], instrument.help)

    def _callback(self, instrument: Instrument) -> "Callable[[CallbackOptions], Iterable[Observation]]":
        from opentelemetry.metrics import Observation

        def observe(options: "CallbackOptions") -> "Iterable[Observation]":
            for labels, value in instrument.read(self._now()):
                yield Observation(float(value), dict(zip(instrument.labels, labels, strict=True)))

        return observe

    def _now(self) -> Reading:
        if self._reading is None or monotonic() - self._read_at > FRESH:
            self._reading = Reading.of(self._service)
            self._read_at = monotonic()
        return self._reading

    def _predicted(self, camera: str, seconds: float) -> None:
        self._seconds.record(seconds, {"camera": camera})
