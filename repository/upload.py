"""A repository to where devices read it: what is missing there, then what refers to it, the timestamp last."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pluto_edge._files import whole_file
from pluto_edge.errors import MissingExtraError, RepositoryError
from pluto_edge.repository.address import check_repository
from pluto_edge.repository.contents import Contents, live_modules, site_of
from pluto_edge.repository.layout import METADATA, TARGETS, ModuleRelease, Release, blob_path

try:
    import fsspec
    from tuf.api.exceptions import RepositoryError as TufError
    from tuf.api.metadata import Metadata, Root, Targets, Timestamp
except ImportError as cause:
    raise MissingExtraError("tuf and fsspec", "repo") from cause

__all__ = ["Uploaded", "upload"]

TIMESTAMP = f"{METADATA}/timestamp.json"


@dataclass(frozen=True)
class Uploaded:
    """How many files, and how many bytes, were missing there."""

    files: int
    bytes: int


def upload(contents: Contents, address: str, progress: Callable[[int, int], None] | None = None) -> Uploaded:
    """Bring what is published to another place; what is only staged stays here."""
    store = _Store(address)
    names = _published(contents)
    store.check_not_newer(contents)
    missing = [n for n in names if not store.has(n, contents.folder / n)]
    total = sum((contents.folder / n).stat().st_size for n in missing)
    done = 0
    for name in missing:
        store.write(name, contents.folder / name)
        done += (contents.folder / name).stat().st_size
        if progress is not None:
            progress(done, total)
    return Uploaded(len(missing), total)


def _published(contents: Contents) -> list[str]:
    """Every file that devices may ask for, in an order in which nothing refers to what is not there yet."""
    roles = contents.roles
    snapshot = roles.snapshot()
    if snapshot is None:
        raise RepositoryError(f"{contents.folder}: nothing is published yet; run: pluto repo publish")
    blobs: dict[str, None] = {}
    files: dict[str, None] = {}
    for role in roles.published_targets():
        targets = roles.targets(role) or Targets()
        for info in targets.targets.values():
            files |= dict.fromkeys(f"{TARGETS}/{path}" for path in info.get_prefixed_paths())
        releases = [t for t in targets.targets if role == Targets.type and t.startswith("releases/")]
        modules = live_modules(targets, site_of(role))
        described = [contents.describe(Release, targets, t) for t in releases]
        described += [contents.describe(ModuleRelease, targets, t) for t in modules]  # type: ignore[misc]
        blobs |= {blob_path(entry.sha256): None for one in described for entry in one.blobs}
    roots = [f"{METADATA}/{version}.root.json" for version in range(1, roles.newest_file(Root.type) + 1)]
    metadata = [f"{METADATA}/{meta.version}.{name}" for name, meta in snapshot.meta.items()]
    return [*blobs, *files, *roots, *metadata, f"{METADATA}/{snapshot.version}.snapshot.json", TIMESTAMP]


class _Store:
    """A place that fsspec writes to."""

    def __init__(self, address: str) -> None:
        self.address = check_repository(address).rstrip("/")
        if self.address.startswith(("http://", "https://")):
            raise RepositoryError(f"{address}: web servers are read from; upload to what they serve, such as s3://")
        try:
            self._fs, self._root = fsspec.core.url_to_fs(self.address)
        except (ImportError, ValueError) as cause:
            raise RepositoryError(f"{address}: fsspec cannot write there ({cause})") from cause
        self._local = "file" in _protocols(self._fs)

    def has(self, name: str, local: Path) -> bool:
        """Whether a file is there: a blob of the same length, or metadata with the same bytes."""
        path = f"{self._root}/{name}"
        try:
            if name.startswith(METADATA):
                return bool(self._fs.cat_file(path) == local.read_bytes())
            return bool(self._fs.info(path)["size"] == local.stat().st_size)
        except FileNotFoundError:
            return False

    def write(self, name: str, local: Path) -> None:
        """A whole file: object stores show it when it is complete, and folders here, too."""
        path = f"{self._root}/{name}"
        if self._local:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with local.open("rb") as source, whole_file(Path(path)) as target:
                while chunk := source.read(1 << 20):
                    target.write(chunk)
            return
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._fs.put_file(str(local), path)

    def check_not_newer(self, contents: Contents) -> None:
        """Nobody's later publication is overwritten."""
        own = contents.roles.timestamp()
        try:
            there: Metadata[Timestamp] = Metadata.from_bytes(self._fs.cat_file(f"{self._root}/{TIMESTAMP}"))
        except (FileNotFoundError, TufError):
            return
        if own is not None and there.signed.version > own.version:
            raise RepositoryError(
                f"{self.address}: has timestamp {there.signed.version}, and {contents.folder} only {own.version}; "
                "was it published from another folder?"
            )


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
