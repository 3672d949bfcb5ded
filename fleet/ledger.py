"""`Ledger`: which bundle a device runs and which it is trying, in a file that survives whatever happens.

It is written before a bundle is tried, so that a device which dies of it comes up with the bundle before it, and
knows why.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

from pluto_edge._files import alone_in, sweep, write_text
from pluto_edge._schema import check_version, decode, read_json, to_text
from pluto_edge.errors import BundleError, ConfigError
from pluto_edge.manifest import MANIFEST

__all__ = ["Ledger", "Verdict"]

SCHEMA_VERSION = 1
MAX_STARTS = 3  # of a bundle's trial: the first, and two more where the device died of it
MAX_VERDICTS = 100


@dataclass(frozen=True)
class Verdict:
    """What became of a bundle's trial.

    Attributes:
        bundle: its hash.
        committed: it takes the place of the old one; else the device goes back by itself.
        reasons: what speaks against it; nothing where it is committed.
        frames: that both have predicted.
        agreement: share of them that both called the same.
        old_milliseconds, new_milliseconds: of a prediction, the median.
        old_classes, new_classes: effective number of classes that were predicted.
    """

    bundle: str
    committed: bool
    reasons: tuple[str, ...] = ()
    frames: int = 0
    agreement: float = 0.0
    old_milliseconds: float = 0.0
    new_milliseconds: float = 0.0
    old_classes: float = 0.0
    new_classes: float = 0.0

    def __str__(self) -> str:
        what = "committed" if self.committed else "taken back: " + "; ".join(self.reasons)
        return f"bundle {self.bundle[:12]} was {what}"


@dataclass(frozen=True)
class _Record:
    """The file: the bundle that was committed last, the one on trial, how often each was begun, the verdicts."""

    committed: str = ""
    trying: str = ""
    starts: dict[str, int] = field(default_factory=dict)
    verdicts: tuple[Verdict, ...] = ()
    schema_version: int = SCHEMA_VERSION


class Ledger:
    """A device's record of its bundles; one process at a time tries one."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._record = self._read()

    def standing(self, shipped: str | Path) -> Path:
        """The bundle to open: the one that was committed last, or the one that the device came with.

        A bundle that was on trial when the device died is neither.
        """
        committed = Path(self._record.committed)
        there = self._record.committed and (committed / MANIFEST).is_file()
        return committed if there else Path(shipped)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The last hundred, oldest first."""
        return self._record.verdicts

    def refuses(self, bundle: str) -> Verdict | None:
        """The verdict for which the bundle of this hash is not tried again."""
        return next((v for v in reversed(self.verdicts) if v.bundle == bundle and not v.committed), None)

    def adopt(self, path: str | Path) -> None:
        """The bundle in this folder runs without a trial: the device came with it, or was told so."""
        folder = str(Path(path).resolve())
        if folder != self._record.committed:
            self._write(committed=folder)

    def begin(self, bundle: str, path: str | Path) -> None:
        """Before the bundle of this hash is opened: its trial begins. Refuses one that has failed, or that the
        device has died of too often."""
        failed = self.refuses(bundle)
        if failed:
            raise ConfigError(f"{path}: it was tried before and {failed}; delete {self.path} to try it again")
        starts = self._record.starts.get(bundle, 0)
        if starts >= MAX_STARTS:
            raise ConfigError(f"{path}: its trial was begun {starts} times and never ended; it is not tried again")
        self._write(trying=str(path), starts={**self._record.starts, bundle: starts + 1})

    def end(self, verdict: Verdict) -> None:
        """The trial is over."""
        committed = self._record.trying if verdict.committed else self._record.committed
        verdicts = (*self.verdicts, verdict)[-MAX_VERDICTS:]
        starts = {b: n for b, n in self._record.starts.items() if b != verdict.bundle}
        self._write(trying="", committed=committed, starts=starts, verdicts=verdicts)

    def put_off(self, bundle: str) -> None:
        """The trial was ended from outside before there was a verdict: this start does not count."""
        starts = self._record.starts.get(bundle, 1) - 1
        self._write(trying="", starts={**self._record.starts, bundle: starts})

    def _read(self) -> _Record:
        if not self.path.exists():
            return _Record()
        data = read_json(self.path, BundleError)
        check_version(data, SCHEMA_VERSION, str(self.path), BundleError)
        return decode(_Record, data, str(self.path), BundleError)

    def _write(self, **changes: object) -> None:
        self._record = replace(self._record, **changes)  # type: ignore[arg-type]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with alone_in(self.path.parent) as alone:
            if alone:
                sweep(self.path)
            write_text(self.path, to_text(self._record))
