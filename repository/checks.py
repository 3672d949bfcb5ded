"""What a repository refuses to publish: anything that does not open, is not finite or disagrees with torch."""

from pathlib import Path

from pluto_edge.errors import BundleError, RepositoryError, StoreError
from pluto_edge.manifest import Bundle
from pluto_edge.store import ModuleConfig, read_module, read_module_config

__all__ = ["check_bundle", "check_module_folder"]


def check_bundle(path: Path) -> Bundle:
    """The bundle in `path`, if all files are whole, all tensors finite and all parity figures within tolerance."""
    try:
        bundle = Bundle(path)
        for name in bundle.manifest.names:
            bundle.load_module(name)
        bundle.load_selector()
        bundle.load_backbone_affines()
        bundle.load_seen()
    except BundleError as cause:
        raise RepositoryError(f"{cause}; it is not added") from cause
    if not bundle.manifest.parity:
        raise RepositoryError(f"{path}: was never compared with torch; export it again: pluto export")
    failed = [entry for entry in bundle.manifest.parity if not entry.passed]
    if failed:
        first = failed[0]
        raise RepositoryError(
            f"{path}: {first.output} at batch {first.batch} is {first.error:.3g} away from torch, "
            f"{first.tolerance:.3g} is allowed; it is not added"
        )
    return bundle


def check_module_folder(path: Path) -> ModuleConfig:
    """The description of a module's folder, if its tensors are whole, finite and have a signature."""
    try:
        config = read_module_config(path)
        module = read_module(path, config)
        signature = module.signature(StoreError)
    except StoreError as cause:
        raise RepositoryError(f"{cause}; it is not added") from cause
    if signature is None:
        raise RepositoryError(
            f"{path}: has no signature, so that no device would find it; run: pluto signatures STORE"
        )
    return config
