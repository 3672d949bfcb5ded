"""A device that follows the channel `stable` of a repository, and what an attack by way of it must never change."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from attacks.catalogue.hostile_repository import QUICK, Simulator
from attacks.harness import Case, Escape
from attacks.story import Story
from attacks.world import BUNDLE
from pluto_edge.errors import RepositoryError
from pluto_edge.manifest import MANIFEST, Bundle
from pluto_edge.repository.fetcher import Limits
from pluto_edge.repository.layout import Release

ADDRESS = Simulator.address


class Device:
    """Has release 1.0, the digits, in an empty folder `place`. What it waits for is on a clock of its own."""

    def __init__(self, place: Path, *, threshold: int = 1, limits: Limits = QUICK) -> None:
        self.now = 0.0
        self.place = place
        self.repository = Simulator(threshold=threshold)
        self.repository.add_files(digits())
        self.repository.publish()
        self.client = self.repository.client(place, limits, clock=lambda: self.now)
        self.folder: Path | None = self.client.pull(ADDRESS)

    def forget(self) -> None:
        """The device is new: it has the root of trust and nothing else."""
        place = self.place / "new"
        place.mkdir()
        self.client = self.repository.client(place, self.client.fetcher.limits, clock=lambda: self.now)
        self.folder = None

    def restart(self) -> None:
        """Another process: what is known is what is on the disk."""
        self.client = self.repository.client(self.place, self.client.fetcher.limits, clock=lambda: self.now)

    def next_release(self) -> Release:
        """Release 1.1, which is not published yet: the same graphs with another manifest."""
        files = digits()
        return self.repository.add_files({**files, MANIFEST: files[MANIFEST] + b"\n"}, "1.1")

    def refuses(self, reason: str) -> Story:
        """The next pull must be refused for this reason, and change nothing."""
        try:
            self.client.pull(ADDRESS)
        except RepositoryError as error:
            said = str(error)
        else:
            raise Escape("the attack was taken for the repository")
        if not re.search(reason, said):
            raise Escape(f"refused for another reason: {said}")
        self.check()
        return Story(True, f"{said}; {'goes on with 1.0' if self.folder else 'has nothing, as before'}")

    def check(self) -> None:
        """What was here is what is here, whole, and nothing else was put beside it."""
        if self.client.cached(ADDRESS) != self.folder:
            raise Escape("the device does not have what it had")
        if self.folder is not None:
            Bundle(self.folder)
        there = [p.name for p in (self.client.cache.folder / "bundles").iterdir()]
        if there != ([self.folder.name] if self.folder else []):
            raise Escape(f"there are other bundles: {there}")

    def takes(self, release: Release) -> None:
        """The next pull must bring this release."""
        found = self.client.pull(ADDRESS)
        if found.name != release.content:
            raise Escape("an honest release is not taken")
        Bundle(found)

    def refuses_until_honest(self, reason: str, honest: Mapping[str, bytes]) -> Story:
        """As `refuses`; once these files are served again, the next release is taken."""
        story = self.refuses(reason)
        self.repository.files = dict(honest)
        self.repository.streams.clear()
        release = self.next_release()
        self.repository.publish()
        self.takes(release)
        return replace(story, said=f"{story.said}; takes 1.1 once the attack is over")

    def largest(self, start: str) -> str:
        """The path of the largest file that is served below this one."""
        files = self.repository.files
        return max((p for p in files if p.startswith(start)), key=lambda p: len(files[p]))


Variant = Callable[[Device, Random], Story]


@dataclass(frozen=True)
class Tries:
    """What an attack tries, by what it is called, and the device that it tries it on."""

    variants: Mapping[str, Variant]
    threshold: int = 1
    limits: Limits = QUICK

    def play(self, tried: str, place: Path, rng: Random) -> Story:
        """One of them, on a device of its own in an empty folder."""
        device = Device(place, threshold=self.threshold, limits=self.limits)
        return replace(self.variants[tried](device, rng), tried=tried)

    def cases(self, place: Path) -> Case:
        """Cases that try any of them."""

        def case(rng: Random) -> Story:
            tried = rng.choice(list(self.variants))
            with TemporaryDirectory(dir=place) as folder:
                return self.play(tried, Path(folder), rng)

        return case


@lru_cache(maxsize=1)
def digits() -> dict[str, bytes]:
    """The files of the bundle that is attacked."""
    return {p.relative_to(BUNDLE).as_posix(): p.read_bytes() for p in BUNDLE.rglob("*") if p.is_file()}
