"""`pluto verify`."""

import argparse

from pluto_edge.cli.parsing import add_json, print_json
from pluto_edge.cli.transfers import shown_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Hash every file of every bundle and module that was pulled, and name those that are damaged. They are\n"
        "fetched again. Exits with 1 when a file is damaged and was not."
    )
    parser.epilog = "examples:\n  pluto verify\n  pluto verify --no-repair"
    parser.add_argument("--no-repair", action="store_true", help="say what is damaged and fetch nothing")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from pluto_edge.repository.cache import known_repositories
    from pluto_edge.repository.client import Client

    damage = []
    names = 0
    for cache in known_repositories():
        with shown_bytes("verify", options.quiet) as progress:
            damage += Client(cache.url).verify(repair=not options.no_repair, progress=progress)
        names += len(cache.names())
    if options.json:
        print_json({"names": names, "damaged": [{"file": str(d.file), "repaired": d.repaired} for d in damage]})
    else:
        for found in damage:
            print(f"{found.file}: damaged{', and fetched again' if found.repaired else ''}")
        print(f"{names} names verified, {len(damage)} files damaged")
    return int(any(not found.repaired for found in damage))
