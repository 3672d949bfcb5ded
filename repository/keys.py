"""Keys that sign: files of their own, readable by their owner alone, and never in the repository."""

import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pluto_edge._files import write_bytes
from pluto_edge.errors import MissingExtraError, RepositoryError

try:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1
    from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as generate_ec
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from securesystemslib.signer import CryptoSigner, SSlibKey
except ImportError as cause:
    raise MissingExtraError("securesystemslib[crypto]", "repo") from cause

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

__all__ = ["PASSPHRASE", "load_public", "load_signers", "new_key", "new_model_key", "public_file"]

PASSPHRASE = "PLUTO_KEY_PASSPHRASE"
PRIVATE, PUBLIC = ".pem", ".pub"


def new_key(path: Path) -> SSlibKey:
    """Write an Ed25519 key to `path` and its public half beside it; gives the public half."""
    key = Ed25519PrivateKey.generate()
    _write(path, key)
    return SSlibKey.from_crypto(key.public_key())


def new_model_key(path: Path) -> None:
    """Write a key for OpenSSF model signatures, which want the curve P-256, and its public half beside it."""
    _write(path, generate_ec(SECP256R1()))


def public_file(path: Path) -> Path:
    """Where the public half of a key is."""
    return path.with_suffix(PUBLIC)


def load_public(path: Path) -> SSlibKey:
    """A public key that somebody has handed over."""
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as cause:
        raise RepositoryError(f"{path}: not a public key in PEM ({cause})") from cause
    if not isinstance(key, Ed25519PublicKey):
        raise RepositoryError(f"{path}: want an Ed25519 key, got {type(key).__name__}; make one: pluto repo keys")
    return SSlibKey.from_crypto(key)


def load_signers(paths: Iterable[Path], outside: Path | None = None) -> list[CryptoSigner]:
    """The private keys in these files, and in the files `*.pem` of these folders; none may lie in `outside`."""
    found: dict[str, CryptoSigner] = {}
    for file in _files(paths):
        if outside is not None and file.resolve().is_relative_to(outside.resolve()):
            raise RepositoryError(f"{file}: a private key inside of the repository; move it elsewhere")
        key = load_private(file)
        if isinstance(key, Ed25519PrivateKey):
            signer = CryptoSigner(key)
            found[signer.public_key.keyid] = signer
    return list(found.values())


def load_private(file: Path) -> "Ed25519PrivateKey | EllipticCurvePrivateKey":
    """The private key in a file that nobody else may read; `PLUTO_KEY_PASSPHRASE` opens one that is encrypted."""
    try:
        if os.name == "posix" and file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise RepositoryError(f"{file}: others may read this private key; run: chmod 600 {file}")
        data = file.read_bytes()
    except OSError as cause:
        raise RepositoryError(f"{file}: cannot be read ({cause.strerror or cause})") from cause
    try:
        key = serialization.load_pem_private_key(data, passphrase(file))
    except (ValueError, TypeError, UnsupportedAlgorithm) as cause:
        raise RepositoryError(f"{file}: not a private key in PEM, or a wrong passphrase ({cause})") from cause
    return key  # type: ignore[return-value]  # other kinds sign nothing here, and are passed over


def passphrase(file: Path) -> bytes | None:
    """What opens the key in a file, if it is encrypted."""
    if b"ENCRYPTED" not in file.read_bytes():
        return None
    secret = os.environ.get(PASSPHRASE, "").encode()
    if not secret:
        raise RepositoryError(f"{file}: is encrypted; set {PASSPHRASE} to its passphrase")
    return secret


def _files(paths: Iterable[Path]) -> Sequence[Path]:
    found: list[Path] = []
    for path in paths:
        inside = sorted(path.glob(f"*{PRIVATE}")) if path.is_dir() else [path]
        if not inside:
            raise RepositoryError(f"{path}: there is no key (*{PRIVATE}) in it; make some: pluto repo keys {path}")
        found += inside
    return found


def _write(path: Path, key: "Ed25519PrivateKey | EllipticCurvePrivateKey") -> None:
    if path.exists() or public_file(path).exists():
        raise RepositoryError(f"{path}: is there already; keys are not overwritten")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    secret = os.environ.get(PASSPHRASE, "").encode()
    hidden = serialization.BestAvailableEncryption(secret) if secret else serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    write_bytes(path, pem, mode=0o600)
    write_bytes(public_file(path), public)
