"""`Web`: what a service shows: the page of all cameras, a page for each, probes and metrics."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from http import HTTPStatus

from pluto_edge.errors import MissingExtraError
from pluto_edge.observe.server import Query, Reply, Server
from pluto_edge.service import prometheus
from pluto_edge.service.config import address
from pluto_edge.service.health import dead, unready
from pluto_edge.service.otel import Telemetry, to_collector
from pluto_edge.service.overview import Overview
from pluto_edge.service.service import Service

__all__ = ["Web"]


class Web:
    """Serves until `close`. It may be there before the service has started: then it is alive and not ready."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._stack = ExitStack()
        self._overview = Overview(service, lambda: self.server.csrf)
        config = service.config
        with self._stack:  # what was opened is closed, should the rest fail
            metrics = prometheus.Exposition(service) if config.metrics or prometheus.installed() else None
            probes = {"/healthz": self._alive, "/readyz": self._ready, "/metrics": _metrics(metrics)}
            pages, actions = self._routes()
            self.server = Server(*address("page", config.page), config.token, pages, actions, probes)
            self._stack.callback(self.server.stop)
            self.probes = self.server
            if config.metrics is not None:
                self.probes = Server(*address("metrics", config.metrics), None, {}, {}, probes)
                self._stack.callback(self.probes.stop)
            if config.otlp is not None:
                self._stack.callback(Telemetry(service, [to_collector(config.otlp)]).close)
            service.csrf = lambda: self.server.csrf
            service.on_cameras = self._mount
            self._stack = self._stack.pop_all()

    @property
    def url(self) -> str:
        """Where the page is, without the token: it may be logged."""
        return self.server.url.partition("?")[0]

    def close(self) -> None:
        """The pages are gone when this returns."""
        self._service.on_cameras = lambda: None
        self._stack.close()

    def __enter__(self) -> "Web":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _routes(self) -> tuple[Mapping[str, Callable[[Query], Reply]], Mapping[str, Callable[[], Reply]]]:
        pages = dict(self._overview.pages())
        actions = dict(self._overview.actions())
        for name, camera in self._service.cameras.items():
            pages |= camera.page.pages(f"/camera/{name}/")
            actions |= camera.page.actions(f"/camera/{name}/")
        return pages, actions

    def _mount(self) -> None:
        """Other cameras are there, or cameras have other pages."""
        self.server.pages, self.server.actions = self._routes()

    def _alive(self, query: Query) -> Reply:
        return _verdict(dead(self._service))

    def _ready(self, query: Query) -> Reply:
        return _verdict(unready(self._service))


def _metrics(exposition: prometheus.Exposition | None) -> Callable[[Query], Reply]:
    def answer(query: Query) -> Reply:
        if exposition is None:
            missing = MissingExtraError("prometheus-client", "metrics")
            return Reply(f"{missing}\n".encode(), status=HTTPStatus.NOT_IMPLEMENTED)
        return Reply(*exposition.text())

    return answer


def _verdict(problems: list[str]) -> Reply:
    status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
    return Reply(("\n".join(problems) or "ok").encode() + b"\n", status=status)
