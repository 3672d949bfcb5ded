"""`pluto pull`."""

import argparse
from pathlib import Path

from pluto_edge.cli.parsing import add_json, print_json
from pluto_edge.cli.transfers import shown_bytes
from pluto_edge.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Fetch what is missing of a bundle, or of modules, and check it against the repository's root of trust.\n"
        "Prints the folders. An address is <repository>/<bundle>[@channel or version]; without one it is @stable."
    )
    parser.epilog = (
        "examples:\n"
        "  pluto pull https://store.example/meter --root root.json   # the root of trust, once\n"
        "  pluto pull https://store.example/meter@beta\n"
        "  pluto pull s3://bucket/store/meter@1.2 --module fog --module lab/rain\n"
        "  pluto stream https://store.example/meter 0                # every command that takes a bundle does this"
    )
    parser.add_argument("address", metavar="ADDRESS", help="of a bundle in a repository")
    parser.add_argument(
        "--root",
        type=Path,
        metavar="FILE",
        help="the repository's root of trust (default: $PLUTO_ROOT, or the last)",
    )
    parser.add_argument(
        "--module",
        action="append",
        default=[],
        metavar="NAME",
        help="a module by itself, too; a site's is SITE/NAME",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from pluto_edge.repository.address import Address
    from pluto_edge.repository.client import Client

    address = Address.parse(options.address)
    client = Client(address.repository, root=options.root)
    with shown_bytes("pull", options.quiet) as progress:
        bundle = client.pull(address, progress)
        modules = {}
        for module in options.module:
            site, _, name = module.rpartition("/")
            if not name:
                raise ConfigError(f"--module {module}: want NAME or SITE/NAME")
            modules[module] = client.module(name, site, progress)
    kept = client.cache.kept("bundles", f"{address.bundle}@{address.selector}")
    if options.json:
        found = {name: str(folder) for name, folder in modules.items()}
        print_json({"bundle": str(bundle), "version": kept.version if kept else None, "modules": found})
    else:
        print(bundle)
        print(*modules.values(), sep="\n", end="\n" if modules else "")
    return 0
