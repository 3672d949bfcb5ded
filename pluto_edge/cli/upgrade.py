"""`pluto upgrade`."""

import argparse
from pathlib import Path

from pluto_edge import manifest, store
from pluto_edge._files import found
from pluto_edge._schema import check_version, read_json
from pluto_edge.errors import BundleError, ConfigError, StoreError

NEED_EXPORT = """graphs of schema {old} lack what this pluto-edge runs; they are written anew from the store:
  pluto export --modules STORE --out {path} --force
modules, selector and classes come from the store unchanged; what streams learned with the old bundle starts anew"""
NO_SIGNATURE = """these modules have no signature, so that the paper's selector decides for them: {names}
  pluto signatures {path} --data PHOTOS"""
RECENTRED = "what schema {old} kept for re-centring is passed over; it is learned again within a few batches"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say of a store, a bundle or a saved state whether this pluto-edge reads it, what can be carried over\n"
        "from an older schema and what cannot, and write states anew. The state before stays beside it, as\n"
        ".previous.\n"
        "Exits with 1 when something is left for you to do."
    )
    parser.epilog = (
        "examples:\n"
        "  pluto upgrade bundle/\n"
        "  pluto upgrade store/\n"
        "  pluto upgrade state.safetensors --bundle bundle/           # written anew in the newest schema\n"
        "  pluto upgrade state.safetensors --bundle bundle/ --check   # only say what would be done"
    )
    parser.add_argument("path", type=Path, help="a store, a bundle, or a state that was saved")
    parser.add_argument("--bundle", type=Path, help="the bundle that a state was saved with")
    parser.add_argument("--check", action="store_true", help="write nothing")


def run(options: argparse.Namespace) -> int:
    path = found(options.path)
    if (path / manifest.MANIFEST).is_file():
        return _bundle(path)
    if (path / "store.json").is_file():
        return _store(path)
    if path.is_dir():
        raise ConfigError(f"{path}: neither a bundle ({manifest.MANIFEST}) nor a module store (store.json)")
    return _state(path, options.bundle, options.check)


def _bundle(path: Path) -> int:
    data = read_json(path / manifest.MANIFEST, BundleError)
    check_version(data, manifest.SCHEMA_VERSION, str(path / manifest.MANIFEST), BundleError)
    if data["schema_version"] < manifest.SCHEMA_VERSION:
        return _told(
            path, "bundle", data["schema_version"], NEED_EXPORT.format(old=data["schema_version"], path=path)
        )
    manifest.Bundle(path)
    return _told(path, "bundle", manifest.SCHEMA_VERSION)


def _store(path: Path) -> int:
    opened = store.Store(path)
    without = [name for name in opened.names if opened.load_module(name).signature(StoreError) is None]
    advice = NO_SIGNATURE.format(names=", ".join(without), path=path) if without else ""
    return _told(path, "store", store.SCHEMA_VERSION, advice)


def _state(path: Path, bundle: Path | None, check: bool) -> int:
    from safetensors import SafetensorError, safe_open

    from pluto_edge.runtime.persistence import SCHEMA_VERSION
    from pluto_edge.runtime.runtime import Runtime

    try:
        with safe_open(path, framework="numpy") as opened:
            version = (opened.metadata() or {}).get("schema_version", "")
    except (OSError, SafetensorError) as cause:
        raise StoreError(f"{path}: neither a folder nor a saved state ({cause})") from cause
    if bundle is None:
        raise ConfigError(f"{path}: a saved state; give the bundle that it was saved with: --bundle BUNDLE")
    with Runtime(bundle, providers="cpu") as runtime:
        runtime.restore(path)  # refuses what is damaged, too new or of another bundle
        old = int(version)
        if old == SCHEMA_VERSION:
            return _told(path, "state", old)
        if not check:
            runtime.save(path)
    print(f"{path}: state, schema {old}: {'can be' if check else 'was'} written anew as schema {SCHEMA_VERSION}")
    if old < 3:
        print(RECENTRED.format(old=old))
    return int(check)


def _told(path: Path, kind: str, version: int, advice: str = "") -> int:
    print(f"{path}: {kind}, schema {version}: {advice or 'nothing to do'}")
    return int(bool(advice))
