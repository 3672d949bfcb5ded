"""`pluto info`."""

import argparse
from pathlib import Path

from pluto_edge._files import found
from pluto_edge.cli.parsing import add_json, print_json
from pluto_edge.errors import ConfigError
from pluto_edge.info import describe_bundle, describe_store
from pluto_edge.manifest import MANIFEST, Bundle
from pluto_edge.store import Store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Describe a module store or a bundle, and check that it is whole."
    parser.epilog = "examples:\n  pluto info bundle/\n  pluto info store/ --json | jq .classes"
    parser.add_argument("path", metavar="PATH", help="a store or a bundle")
    add_json(parser, "print the description as JSON on stdout")


def run(options: argparse.Namespace) -> int:
    path = found(Path(options.path))
    if (path / MANIFEST).is_file():
        bundle = Bundle(path)
        text = describe_bundle(bundle)  # which also checks what is in it
        facts = {"type": "bundle", **vars(bundle.manifest)}
    elif (path / "store.json").is_file():
        store = Store(path)
        text = describe_store(store)
        modules = {name: store.module_config(name) for name in store.names}
        facts = {"type": "store", **vars(store.config), "modules": modules}
    else:
        raise ConfigError(f"{path}: neither a bundle ({MANIFEST}) nor a module store (store.json)")
    if options.json:
        print_json(facts)
    else:
        print(text)
    return 0
