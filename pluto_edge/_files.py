"""Names, hashes and writes on disk: the one place that writes files.

Every write is a whole write: into a temporary neighbour, flushed to the disk, then renamed. A folder takes the
place of another by one exchange of names where the platform has that. Elsewhere it takes two renames, and `recover`
finishes what a run that was killed between them had begun (docs/reliability.md).
"""

import ctypes
import hashlib
import mmap
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from time import monotonic, sleep
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from pluto_edge._schema import Error

if sys.platform != "win32":
    import fcntl

Tensors = dict[str, NDArray[np.float32]]

_TEMPORARY = ".tmp"  # .name.abcdefgh.tmp
_PARTIAL, _OLD = ".partial-", "-old"  # .name.partial-abcdefgh, and the folder that it takes the place of
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_name(name: str, what: str, error: Error) -> str:
    """A name that becomes a file or folder: letters, digits, dot, dash and underscore only."""
    if not _NAME.fullmatch(name) or ".." in name:
        raise error(f"{what}: {name[:120]!r} is not a safe name; use letters, digits, '.', '-' and '_'")
    return name


def inside(root: Path, relative: str, error: Error) -> Path:
    """`root / relative`, refused when it would leave `root`, through `..`, a root or a symbolic link."""
    pure = PurePosixPath(relative)
    if not relative or pure.is_absolute() or ".." in pure.parts or "\\" in relative or "\0" in relative:
        raise error(f"{root}: {relative[:120]!r} is not a path inside the folder")
    path = root / pure
    try:
        within = path.resolve().is_relative_to(root.resolve())
        path.is_file()  # raises where no file can have such a name
    except (OSError, RuntimeError, ValueError) as cause:  # too long, links in a circle, not text
        raise error(f"{root}: {relative[:120]!r} cannot be the path of a file ({type(cause).__name__})") from cause
    if not within:
        raise error(f"{root}: {relative[:120]!r} leads outside the folder")
    return path


def cache_folder() -> Path:
    """What this machine may keep: `$PLUTO_EDGE_CACHE`, or below the user's own cache folder."""
    given = os.environ.get("PLUTO_EDGE_CACHE")
    if given:
        return Path(given)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(base)) / "pluto-edge"  # noqa: PTH111  which never raises


def sha256(path: Path) -> str:
    """Of a file's content, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_aside(path: Path) -> str:
    """The same of a large file, for a thread beside others: it is mapped, and hashed in one go without Python's
    lock, which would otherwise be waited for after every piece that was read."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return hashlib.sha256(content).hexdigest()


def read_tensors(path: Path, error: Error) -> Tensors:
    """A safetensors file of finite float32 arrays (float16 is widened); anything else is an `error`."""
    if not path.is_file():
        raise error(f"{path}: the file is missing")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as cause:
        raise error(f"{path}: not a whole safetensors file ({cause})") from cause
    result: Tensors = {}
    for key, value in tensors.items():
        if value.dtype not in (np.float32, np.float16):
            raise error(f"{path}: {key}: want float32 or float16, got {value.dtype}")
        result[key] = value.astype(np.float32, copy=False)
        if not np.isfinite(result[key]).all():
            raise error(f"{path}: {key}: holds NaN or infinity")
    return result


def write_tensors(path: Path, tensors: Tensors) -> None:
    """Float32, but what is given in half precision stays so."""
    arrays = {k: np.ascontiguousarray(v, dtype=_float(v.dtype)) for k, v in tensors.items()}
    write_bytes(path, save(arrays))


def _float(given: np.dtype[Any]) -> type[np.float16] | type[np.float32]:
    return np.float16 if given == np.float16 else np.float32


def write_text(path: Path, text: str) -> None:
    """A whole write of text in UTF-8."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """A whole write of bytes; `mode` says who may do what with the file, less what the process withholds."""
    with whole_file(path, mode=mode) as file:
        file.write(data)


@contextmanager
def whole_file(path: Path, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` when the block ends well, and vanishes otherwise."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=_TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(mode & ~_umask())
        Path(name).replace(path)
    except BaseException as cause:
        with suppress(OSError):
            Path(name).unlink(missing_ok=True)
        if isinstance(cause, OSError) and cause.filename is None:  # a full disk does not say which file
            raise OSError(cause.errno, cause.strerror, str(path)) from cause
        raise
    sync_folder(path.parent)


@contextmanager
def growing_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write on at its end, which keeps what was written, on the disk, however the block ends.

    It is nothing that can be relied on: `finish` makes it so, once it is whole.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    with os.fdopen(handle, "ab") as file:
        try:
            yield file
        except OSError as cause:
            if cause.filename is None:  # a full disk does not say which file
                raise OSError(cause.errno, cause.strerror, str(path)) from cause
            raise
        finally:
            file.flush()
            os.fsync(file.fileno())


def finish(path: Path, other: Path, *, mode: int = 0o666) -> None:
    """The file `path`, whose bytes are on the disk already, takes the place of `other`."""
    path.chmod(mode & ~_umask())
    path.replace(other)
    sync_folder(other.parent)


def give_name(path: Path, other: Path) -> None:
    """`other` becomes another name of the file `path`, which stays; where there are no links, `path` is moved."""
    temporary = path.with_name(f".{other.name}.{secrets.token_hex(4)}{_TEMPORARY}")
    try:
        os.link(path, temporary)
        temporary.replace(other)
        temporary.unlink(missing_ok=True)  # both are names of one file already: then `replace` does nothing
    except OSError:
        with suppress(FileNotFoundError):  # somebody else has moved it
            path.replace(other)
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def sweep(path: Path) -> None:
    """Delete the temporary files that killed writers of `path` left; call it where nobody else is writing it."""
    pattern = re.compile(re.escape(f".{path.name}.") + "[a-z0-9_]{8}" + re.escape(_TEMPORARY))
    for file in path.parent.iterdir():
        if pattern.fullmatch(file.name):
            with suppress(OSError):
                file.unlink()


@contextmanager
def alone_in(folder: Path, patience: float = 10.0) -> Iterator[bool]:
    """Writers that ask for this come one after another, in threads and in processes.

    False where the platform has no such locks, or the others take longer than `patience` seconds.
    """
    if sys.platform == "win32":
        yield False
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        yield False
        return
    try:
        yield _locked(handle, monotonic() + patience)
    finally:
        os.close(handle)  # and the lock is gone


def _locked(handle: int, until: float) -> bool:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if monotonic() > until:
                return False
            sleep(0.005)
        except OSError:
            return False


def hold(file: IO[Any]) -> None:
    """Marks an open file as being written, until it is closed or its process ends; not on Windows."""
    if sys.platform != "win32":
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_held(path: Path) -> bool:
    """Whether somebody holds this file; False where that cannot be known."""
    if sys.platform == "win32":
        return False
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A temporary folder that takes the place of `target` when the block ends well, and vanishes otherwise.

    What an earlier, killed run left beside the target is finished or taken back, then swept away.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    recover(target)
    for stale in _left_behind(target):
        _discard(stale)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}{_PARTIAL}", dir=target.parent))
    try:
        partial.chmod(0o777 & ~_umask())
        yield partial
        for item in (*partial.rglob("*"), partial):
            if item.is_file():
                _sync(item)
            elif item.is_dir():
                sync_folder(item)
        _take_place(partial, target)
        sync_folder(target.parent)
    finally:
        if not os.path.lexists(_old(partial)):  # else a folder is still to be recovered
            _discard(partial)


def recover(target: Path) -> None:
    """Where `target` is missing because a `whole_folder` was killed on its way there: put it in its place.

    That is the new folder, which was whole before the old one was moved away, or else the old one. Whoever reads a
    folder that `whole_folder` writes calls this first.
    """
    if os.path.lexists(target):
        return
    for old in _left_behind(target):
        if not old.name.endswith(_OLD):
            continue
        new = old.with_name(old.name.removesuffix(_OLD))
        try:
            (new if _is_folder(new) else old).rename(target)
        except OSError:
            if not os.path.lexists(target):  # else somebody else has recovered it
                raise
        sync_folder(target.parent)
        return


def found(target: Path) -> Path:
    """`target`, recovered where that is necessary and possible: what readers call."""
    with suppress(OSError):
        recover(target)
    return target


def _take_place(partial: Path, target: Path) -> None:
    """Afterwards `target` is the new folder, and the old one, if there was one, is where the new one was."""
    if not os.path.lexists(target):
        partial.rename(target)
        return
    if _exchange(partial, target):
        return
    old = _old(partial)
    target.rename(old)
    try:
        partial.rename(target)
    except BaseException:
        if not os.path.lexists(target):
            old.rename(target)
            raise
        if os.path.lexists(partial):
            raise
    with suppress(OSError):  # the next `whole_folder` sweeps it away
        old.rename(partial)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step, as only Linux can, on most file systems; says whether it was done."""
    if sys.platform != "linux":
        return False
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(renameat2(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)


def _left_behind(target: Path) -> list[Path]:
    """Temporary folders of `target`, whose writers are dead."""
    try:
        names = sorted(os.listdir(target.parent))  # noqa: PTH208  names are enough
    except OSError:
        return []
    pattern = re.compile(re.escape(f".{target.name}{_PARTIAL}") + rf"[a-z0-9_]{{8}}({_OLD})?")
    return [path for n in names if pattern.fullmatch(n) and _is_folder(path := target.parent / n)]


def _is_folder(path: Path) -> bool:
    """A folder of its own: never a link, which may lead anywhere."""
    return path.is_dir() and not path.is_symlink()


def _old(partial: Path) -> Path:
    return partial.with_name(partial.name + _OLD)


def _discard(path: Path) -> None:
    """Best effort: what stays behind is swept away next time."""
    if path.is_symlink() or path.is_file():
        with suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def sync_folder(path: Path) -> None:
    """Makes renames in a folder survive a loss of power."""
    if os.name == "posix":
        _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
