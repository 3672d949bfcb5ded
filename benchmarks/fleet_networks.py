"""How devices of `fleet.py` are connected, and what goes wrong on the way: a transport with a clock of its own."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random

from tuf.api.exceptions import DownloadError, DownloadHTTPError

from pluto_edge.repository.fetcher import Opened
from pluto_edge.repository.layout import BLOBS

URL = "https://store.example"
CHUNK = 16 * 1024  # bytes that arrive at once
HOUR = 3600.0
OUTAGE = (2 * HOUR, 12 * HOUR)  # how long a device that is often offline stays so
BETWEEN = (0.5 * HOUR, 3 * HOUR)  # and how long it is connected in between
FAULTY = 0.3  # of the polls on a bad network, those in which something may go wrong


@dataclass(frozen=True)
class Weather:
    """What one poll meets: seconds until an answer begins, bytes a second, and how probable each fault is.

    `breaks`: the connection breaks off. `cut`: the answer ends early, as if that were all. `flipped`: a bit is not
    what it was. `killed`: the process is killed during the poll.
    """

    latency: float
    rate: float
    breaks: float = 0.0
    cut: float = 0.0
    flipped: float = 0.0
    killed: bool = False


@dataclass(frozen=True)
class Network:
    """A kind of connection: the share of devices that have it, ranges of latency and rate, and the faults."""

    share: float
    latency: tuple[float, float]
    rate: tuple[float, float]
    breaks: float = 0.0
    cut: float = 0.0
    flipped: float = 0.0
    killed: bool = False
    slow: bool = False
    outages: bool = False

    def weather(self, rng: Random, latency: float, rate: float) -> Weather | None:
        """What the next poll meets; None where nothing goes wrong."""
        if self.slow:
            return Weather(latency, rate * rng.uniform(0.3, 1.0))
        if rng.random() >= FAULTY or not (self.breaks or self.cut or self.flipped or self.killed):
            return None
        return Weather(latency, rate, self.breaks, self.cut, self.flipped, self.killed)


FAST = {"latency": (0.02, 0.3), "rate": (125e3, 6e6)}  # 1 to 50 Mbit/s
NETWORKS = {
    "good": Network(0.90, **FAST),
    "lossy": Network(0.02, **FAST, breaks=0.3),
    "slow": Network(0.02, latency=(1.0, 8.0), rate=(1e3, 20e3), slow=True),
    "often offline": Network(0.02, **FAST, outages=True),
    "damaging": Network(0.02, **FAST, cut=0.15, flipped=0.15),
    "killed": Network(0.02, **FAST, killed=True),
}


def outages(rng: Random, until: float) -> list[tuple[float, float]]:
    """When a device is offline, from and to."""
    found = []
    at = rng.uniform(-OUTAGE[1], BETWEEN[1])  # some are offline from the start
    while at < until:
        end = at + rng.uniform(*OUTAGE)
        found.append((at, end))
        at = end + rng.uniform(*BETWEEN)
    return found


class Unplugged:
    """No network at all."""

    def open(self, url: str, start: int, idle: float) -> Opened:
        """Never."""
        raise DownloadError(f"{url}: cannot be reached")


class Wire:
    """The files of a repository over a connection; counts bytes, answers and the time that they take.

    `look` is called whenever a file of a bundle begins: whoever wants to see what is on the disk in the middle.
    """

    def __init__(self, files: Mapping[str, bytes], weather: Weather, rng: Random) -> None:
        self._files = files
        self._weather = weather
        self._rng = rng
        self.now = 0.0
        self.bytes = 0
        self.requests = 0
        self.look: Callable[[], None] = lambda: None

    def clock(self) -> float:
        """Seconds of the simulation."""
        return self.now

    def open(self, url: str, start: int, idle: float) -> Opened:
        """The file from byte `start` on, or what the weather leaves of it."""
        self.requests += 1
        self.now += self._weather.latency
        path = url.removeprefix(f"{URL}/")
        if path.startswith(BLOBS):
            self.look()
        data = self._files.get(path)
        if data is None:
            raise DownloadHTTPError(f"{url}: the server says 404", 404)
        return Opened(start, self._chunks(url, data[start:]))

    def _chunks(self, url: str, data: bytes) -> Iterator[bytes]:
        weather = self._weather
        breaks, cut, flipped = (self._rng.random() < p for p in (weather.breaks, weather.cut, weather.flipped))
        end = self._rng.randrange(len(data) + 1) if breaks or cut else len(data)
        sent = bytearray(data[:end])
        if flipped and sent:
            sent[self._rng.randrange(len(sent))] ^= 1 << self._rng.randrange(8)
        for at in range(0, len(sent), CHUNK):
            chunk = bytes(sent[at : at + CHUNK])
            self.bytes += len(chunk)
            self.now += len(chunk) / weather.rate
            yield chunk
        if breaks:
            raise DownloadError(f"{url}: the connection broke off")
