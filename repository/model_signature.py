"""OpenSSF model signatures of bundles, on the workstation: who made one, for whoever has no repository to ask."""

from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

from pluto_edge._files import write_bytes
from pluto_edge.errors import MissingExtraError, RepositoryError
from pluto_edge.manifest import MANIFEST, Bundle
from pluto_edge.repository.keys import load_private, passphrase, public_file

__all__ = ["sign_bundle", "verify_bundle"]


def sign_bundle(bundle: str | Path, key: Path, out: Path) -> None:
    """Write a signature of all files of a bundle, with a key of the curve P-256 (`pluto repo keys --model`)."""
    signing = _library()[0]
    load_private(key)  # says what is wrong with it
    opened = Bundle(bundle)
    own = {MANIFEST, *opened.manifest.files}
    there = {p.relative_to(opened.path).as_posix() for p in opened.path.rglob("*") if p.is_file()}
    if there - own:
        raise RepositoryError(
            f"{bundle}: {min(there - own)} is not part of the bundle; take it away before you sign"
        )
    try:
        signer = signing.Config().use_elliptic_key_signer(private_key=key, password=passphrase(key))
    except (ValueError, TypeError, AttributeError) as cause:
        raise RepositoryError(f"{key}: model signatures want a key of the curve P-256 ({cause})") from cause
    with TemporaryDirectory(prefix="pluto-edge-") as scratch:
        signer.sign(opened.path, Path(scratch) / "model.sig")
        write_bytes(out, (Path(scratch) / "model.sig").read_bytes())
    if public_file(key).is_file():
        verify_bundle(bundle, out, public_file(key))


def verify_bundle(bundle: str | Path, signature: Path, key: Path) -> None:
    """Raises unless the signature is of exactly these files, and made with the private half of this public key."""
    verifying = _library()[1]
    from cryptography.exceptions import InvalidSignature

    for file in (signature, key):
        if not file.is_file():
            raise RepositoryError(f"{file}: the file is missing")
    try:
        verifying.Config().use_elliptic_key_verifier(public_key=key).verify(Path(bundle), signature)
    except (ValueError, OSError, KeyError, IndexError, TypeError, AttributeError, InvalidSignature) as cause:
        why = str(cause) or "it was made with another key"
        raise RepositoryError(f"{bundle}: {signature.name} is not a signature of it ({why})") from cause


def _library() -> tuple[ModuleType, ModuleType]:
    try:
        from model_signing import signing, verifying
    except ImportError as cause:
        raise MissingExtraError(cause.name or "model-signing", "repo") from cause
    return signing, verifying
