"""What `pluto serve` is told: one TOML file as frozen dataclasses; what is wrong with it is named by its key."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pluto_edge._files import check_name
from pluto_edge._schema import check_once, decode
from pluto_edge._text import did_you_mean
from pluto_edge.errors import ConfigError
from pluto_edge.observe.server import MIN_TOKEN

__all__ = ["CameraConfig", "ServiceConfig", "address", "example", "read"]

MIN_SHARE = 0.001  # of the time for learning, that a camera can be given
MAX_CAMERAS = 64  # each is a thread or two, and a label of every series
MAX_BYTES = 1024 * 1024  # of a file; it has a few lines for each camera


@dataclass(frozen=True)
class CameraConfig:
    """One camera.

    Attributes:
        name: letters, digits, `.`, `-` and `_`: it is part of addresses and file names.
        source: what `pluto stream` takes: an index, an address, a video, a folder.
        fps: frames a second that are predicted at most. Of a live camera others are dropped; a video or a folder is
            read at this pace.
        optional: the service counts as ready without it.
        repeat: a video or a folder begins anew where it ends.
        stall_after: seconds without a frame after which the camera counts as stalled and is opened anew.
        learn: False predicts only.
        budget: share of the time for learning; None takes an equal part of what the others leave.
        batch, every, on_change: of `Runtime.stream`.
    """

    name: str
    source: str
    fps: float = 5.0
    optional: bool = False
    repeat: bool = False
    stall_after: float = 20.0
    learn: bool = True
    budget: float | None = None
    batch: int = 64
    every: int | None = None
    on_change: Literal["reopen", "mark"] = "reopen"

    def __post_init__(self) -> None:
        check_name(self.name, "name", ConfigError)
        if not self.source or self.source == "-" or "\0" in self.source:
            raise ConfigError(
                f"source: want a camera's index, an address, a video or a folder, got {self.source!r}"
            )
        _check_between("fps", self.fps, 0.01, 1000)
        _check_between("stall_after", self.stall_after, max(0.5, 2 / self.fps), 86400)  # two frames may be that far
        if self.budget is not None:
            _check_between("budget", self.budget, MIN_SHARE, 1)
        _check_between("batch", self.batch, 1, 4096)
        if self.every is not None:
            _check_between("every", self.every, 1, 1_000_000)

    def same_stream(self, new: "CameraConfig") -> bool:
        """Whether only the budget, and whether it must be there, are others: they change without a new stream."""
        return replace(self, budget=new.budget, optional=new.optional) == new


@dataclass(frozen=True)
class ServiceConfig:
    """A service: the bundle, its cameras, and who may look.

    Attributes:
        bundle: a folder, or the address of a bundle in a repository.
        state: folder for what is learned, one file a camera; one service at a time has it.
        camera: the cameras, `[[camera]]` in the file.
        budget: share of the time for learning, all cameras together.
        save_every: seconds from one saving of what was learned to the next.
        page: HOST:PORT of the page of all cameras; `token` is needed on any host but this machine.
        metrics: HOST:PORT where /metrics, /healthz and /readyz are open to everyone who reaches it; None: only on
            the page's port, for this machine.
        trial: frames, of all cameras together, that another bundle is tried for beside the one that runs; 0: it
            takes over as soon as it has predicted the newest frame of every camera.
        update_every: seconds from one look for a new release of the bundle to the next; 0: only when reloading.
        modules: a folder of modules, or the address of a repository, in which cameras look for modules that they
            need; None: they do not.
        find_every: seconds from one such look to the next.
        otlp: address of an OpenTelemetry collector that is sent the same metrics.
        providers, threads: of `Runtime`.
    """

    bundle: str
    state: str
    camera: tuple[CameraConfig, ...]
    budget: float = 0.3
    save_every: float = 600.0
    page: str = "127.0.0.1:8765"
    token: str | None = None
    metrics: str | None = None
    otlp: str | None = None
    trial: int = 256
    update_every: float = 0.0
    modules: str | None = None
    find_every: float = 60.0
    providers: str = "auto"
    threads: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.camera) <= MAX_CAMERAS:
            raise ConfigError(f"camera: want 1 to {MAX_CAMERAS} of them, got {len(self.camera)}")
        check_once([c.name.lower() for c in self.camera], "camera")  # file systems may not tell A from a
        for name in ("bundle", "state"):
            if not getattr(self, name) or "\0" in getattr(self, name):
                raise ConfigError(f"{name}: want a folder, got {getattr(self, name)!r}")
        _check_between("budget", self.budget, MIN_SHARE, 1)
        _check_between("save_every", self.save_every, 1, 86400)
        _check_between("trial", self.trial, 0, 1_000_000)
        if self.update_every:
            _check_between("update_every", self.update_every, 1, 86400)
        _check_between("find_every", self.find_every, 1, 86400)
        if self.modules is not None and (not self.modules or "\0" in self.modules):
            raise ConfigError(f"modules: want a folder or an address, got {self.modules!r}")
        address("page", self.page)
        if self.metrics is not None:
            address("metrics", self.metrics)
        if self.token is not None and len(self.token) < MIN_TOKEN:
            raise ConfigError(f"token: want at least {MIN_TOKEN} characters, got {len(self.token)}")
        if self.otlp is not None and not self.otlp.startswith(("http://", "https://")):
            raise ConfigError(f"otlp: want http://HOST:4318/v1/metrics or https://, got {self.otlp!r}")
        if self.threads is not None:
            _check_between("threads", self.threads, 1, 1024)
        self._check_budgets()

    def _check_budgets(self) -> None:
        own = sum(c.budget for c in self.camera if c.learn and c.budget is not None)
        others = [c.name for c in self.camera if c.learn and c.budget is None]
        if own > self.budget + 1e-9:
            raise ConfigError(f"budget: the cameras' own add up to {own:g}, and all together have {self.budget:g}")
        if others and self.budget - own < MIN_SHARE * len(others):
            raise ConfigError(
                f"budget: the cameras' own leave nothing of {self.budget:g} for {others[0]}; give it learn = false"
            )

    @property
    def shares(self) -> dict[str, float]:
        """The budget of every camera. Of those that learn they add up to `budget` at most.

        The others have the least that there is, should somebody press Resume on their page.
        """
        own = {c.name: c.budget for c in self.camera if c.learn and c.budget is not None}
        others = [c.name for c in self.camera if c.learn and c.budget is None]
        rest = self.budget - sum(own.values())
        idle = {c.name: MIN_SHARE for c in self.camera if not c.learn}
        return own | idle | {name: rest / len(others) for name in others}


def address(key: str, text: str) -> tuple[str, int]:
    """HOST:PORT as both."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) < 65536):
        raise ConfigError(f"{key}: want HOST:PORT, got {text!r}")
    return host.strip("[]"), int(port)


def read(file: Path) -> ServiceConfig:
    """The configuration in a file; paths in it are relative to its folder."""
    try:
        size = file.stat().st_size
        if size > MAX_BYTES:
            raise ConfigError(f"{file}: {size:,} bytes; a configuration has at most {MAX_BYTES:,}")
        data = tomllib.loads(file.read_bytes().decode())
    except OSError as cause:
        raise ConfigError(
            f"{file}: cannot be read ({cause.strerror or cause}); see: pluto serve --example"
        ) from cause
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as cause:
        raise ConfigError(f"{file}: not valid TOML ({cause or 'nested too deeply'})") from cause
    _check_keys(data, ServiceConfig, str(file))
    cameras = data.get("camera")
    for number, camera in enumerate(cameras if isinstance(cameras, list) else []):
        _check_keys(camera, CameraConfig, f"{file}.camera[{number}]")
    return _in_folder(decode(ServiceConfig, data, str(file), ConfigError), file.resolve().parent)


def example() -> str:
    """A commented configuration."""
    return files("pluto_edge.service").joinpath("example.toml").read_text("utf-8")


def _check_keys(data: object, cls: type[Any], where: str) -> None:
    """A key that is not known is a mistake: a camera without the setting that was meant is worse than none."""
    known = [f.name for f in fields(cls)]
    for key in data if isinstance(data, Mapping) else ():
        if key not in known:
            raise ConfigError(f"{where}: there is no key {key!r}{did_you_mean(str(key), known)}")


def _in_folder(config: ServiceConfig, folder: Path) -> ServiceConfig:
    def found(text: str) -> str:
        return text if "://" in text else str(folder / text)

    def source(text: str) -> str:
        return text if text.isdecimal() else found(text)

    cameras = tuple(replace(c, source=source(c.source)) for c in config.camera)
    modules = None if config.modules is None else found(config.modules)
    return replace(config, bundle=found(config.bundle), state=found(config.state), modules=modules, camera=cameras)


def _check_between(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ConfigError(f"{name}: want {least:g} to {most:g}, got {value:g}")
