"""`pluto info`."""

import argparse
from pathlib import Path

from pluto_edge._files import found
from pluto_edge.errors import ConfigError
from pluto_edge.info import describe_bundle, describe_store
from pluto_edge.manifest import MANIFEST, Bundle
from pluto_edge.store import Store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Describe a module store or a bundle, and check that it is whole."
    parser.add_argument("path", help="a store or a bundle")


def run(options: argparse.Namespace) -> int:
    path = found(Path(options.path))
    if (path / MANIFEST).is_file():
        print(describe_bundle(Bundle(path)))
    elif (path / "store.json").is_file():
        print(describe_store(Store(path)))
    else:
        raise ConfigError(f"{path}: neither a bundle ({MANIFEST}) nor a module store (store.json)")
    return 0
