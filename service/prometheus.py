"""The instruments for Prometheus: read when it asks, in a registry of their own (extra `[metrics]`)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pluto_edge.errors import MissingExtraError
from pluto_edge.service.instruments import BUCKETS, INSTRUMENTS, PREDICTION, Instrument, Reading
from pluto_edge.service.service import Service

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

__all__ = ["Exposition", "installed"]


def installed() -> bool:
    """Whether prometheus-client is there."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        return False
    return True


class Exposition:
    """What /metrics answers."""

    def __init__(self, service: Service) -> None:
        try:
            from prometheus_client import CollectorRegistry, Histogram, ProcessCollector
        except ImportError as cause:
            raise MissingExtraError("prometheus-client", "metrics") from cause
        self._service = service
        self._registry = CollectorRegistry()
        name, unit, help = PREDICTION
        self._seconds = Histogram(
            f"pluto_{name}_{unit}", help, ["camera"], buckets=BUCKETS, registry=self._registry
        )
        self._registry.register(_Instruments(service))
        ProcessCollector(registry=self._registry)
        service.on_prediction(self._predicted)

    def text(self) -> tuple[bytes, str]:
        """All series as they are now, and their content type."""
        from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

        self._forget()
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4

    def _predicted(self, camera: str, seconds: float) -> None:
        self._seconds.labels(camera).observe(seconds)

    def _forget(self) -> None:
        """Cameras that are gone have no series."""
        there = self._service.cameras
        for metric in self._seconds.collect():
            for camera in {sample.labels["camera"] for sample in metric.samples} - there.keys():
                self._seconds.remove(camera)


class _Instruments:
    """A collector: reads the service once for each scrape."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def describe(self) -> list["GaugeMetricFamily"]:
        """Nothing: the service may not have been started when this is registered."""
        return []

    def collect(self) -> Iterator["CounterMetricFamily | GaugeMetricFamily"]:
        """One family for each instrument."""
        reading = Reading.of(self._service)
        for instrument in INSTRUMENTS:
            yield _family(instrument, reading)


def _family(instrument: Instrument, reading: Reading) -> "CounterMetricFamily | GaugeMetricFamily":
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kind = CounterMetricFamily if instrument.kind == "counter" else GaugeMetricFamily
    name = "_".join(filter(None, ("pluto", instrument.name, instrument.unit)))
    family = kind(name, instrument.help, labels=instrument.labels)
    for labels, value in instrument.read(reading):
        family.add_metric(labels, value)
    return family
