"""Names, hashes and writes on disk: the one place that writes files.

Every write is a whole write: into a temporary neighbour, flushed to the disk, then renamed.
"""

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from pluto_edge._schema import Error

Tensors = dict[str, NDArray[np.float32]]

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
    if not path.resolve().is_relative_to(root.resolve()):
        raise error(f"{root}: {relative[:120]!r} leads outside the folder")
    return path


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    with whole_file(path) as file:
        file.write(data)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` when the block ends well, and vanishes otherwise."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(path)
    except BaseException as cause:
        Path(name).unlink(missing_ok=True)
        if isinstance(cause, OSError) and cause.filename is None:  # a full disk does not say which file
            raise OSError(cause.errno, cause.strerror, str(path)) from cause
        raise
    sync_folder(path.parent)


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A temporary folder that takes the place of `target` when the block ends well, and vanishes otherwise.

    What an earlier, killed run left beside the target is swept away first.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name}.partial-"
    for stale in target.parent.glob(prefix + "*"):
        shutil.rmtree(stale, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        partial.chmod(0o777 & ~_umask())
        yield partial
        for file in partial.rglob("*"):
            if file.is_file():
                _sync(file)
        if target.exists():
            old = partial.with_name(partial.name + "-old")
            target.rename(old)
            partial.rename(target)
            shutil.rmtree(old)
        else:
            partial.rename(target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def sync_folder(path: Path) -> None:
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
