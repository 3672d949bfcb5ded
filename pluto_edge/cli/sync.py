"""`pluto sync`."""

import argparse

from pluto_edge._progress import say
from pluto_edge._text import size, table
from pluto_edge.cli.parsing import add_json, print_json
from pluto_edge.cli.transfers import shown_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Bring every bundle, module and index that was pulled up to date. Exits with 1 when something was\n"
        "revoked, and with 2 when a repository cannot be read or trusted: then what is here stays as it is."
    )
    parser.epilog = "examples:\n  pluto sync\n  pluto sync --prune   # and delete what is not used any more"
    parser.add_argument(
        "--prune", action="store_true", help="keep what is current, and what was before it; no more"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from pluto_edge.repository.cache import known_repositories
    from pluto_edge.repository.client import Client

    outcomes = []
    for cache in known_repositories():
        client = Client(cache.url)
        with shown_bytes("sync", options.quiet) as progress:
            outcomes += [(cache.url, outcome) for outcome in client.sync(progress)]
        freed = cache.prune() if options.prune else 0
        if freed:
            say(f"{cache.url}: {size(freed)} were freed")
    if options.json:
        print_json([{"repository": url, **vars(outcome)} for url, outcome in outcomes])
    else:
        rows = [(url, o.kind, o.name, o.version, o.said) for url, o in outcomes]
        print(table(("repository", "kind", "name", "version", ""), rows))
    return int(any(outcome.revoked for _, outcome in outcomes))
