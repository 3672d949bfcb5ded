"""What the commands' arguments have in common.

A bundle or a store that a command reads is its first argument, without a flag. What is there already is not
overwritten without `--force`. `--json` prints for machines, on stdout.
"""

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from pluto_edge._schema import encode
from pluto_edge._text import did_you_mean, is_address
from pluto_edge.errors import ConfigError, MissingExtraError


class Parser(argparse.ArgumentParser):
    """Says what was probably meant. Takes no abbreviations: a new option must not change what an old line means."""

    def __init__(self, **settings: Any) -> None:
        settings = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False, **settings}
        super().__init__(**settings)

    def error(self, message: str) -> NoReturn:
        found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        hint = did_you_mean(found[1], re.findall(r"[\w.-]+", found[2])) if found else ""
        super().error(message + hint)

    def check_options(self, arguments: Sequence[str]) -> None:
        """An option that there is not is the first thing to say, before all that is missing without it."""
        known = self.option_names()
        for argument in arguments:
            if argument == "--":
                return
            name = argument.partition("=")[0]
            if name.startswith("--") and name not in known:
                self.error(f"unrecognized arguments: {argument}{did_you_mean(name, known)}")

    @property
    def actions(self) -> dict[str, "Parser"]:
        """The parsers of a command's actions by name, for commands that have some."""
        found = [a for a in self._actions if isinstance(a, argparse._SubParsersAction)]
        return dict(found[0].choices) if found else {}

    def option_names(self) -> list[str]:
        return [name for action in self._actions for name in action.option_strings]


BUNDLE = "bundle that `pluto export` wrote, or its address in a repository"


def bundle(text: str) -> Path | str:
    """A bundle's folder, or its address as it is."""
    return text if is_address(text) else Path(text)


def with_bundle(options: argparse.Namespace) -> argparse.Namespace:
    """A bundle that was given by its address is a folder afterwards: its newest release is fetched."""
    for name in ("bundle", "bundle_flag"):
        address = getattr(options, name, None)
        if is_address(address):
            from pluto_edge.cli.transfers import shown_bytes
            from pluto_edge.repository.client import resolve

            with shown_bytes("fetching") as progress:
                setattr(options, name, resolve(str(address), progress=progress))
    return options


def add_bundle(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", metavar="BUNDLE", type=bundle, help=BUNDLE)


def add_engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--providers",
        default="auto",
        help="auto, cpu, cuda, openvino, ... or one for each graph: embed=openvino,forward=openvino,adapt=cpu "
        "(default: auto)",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="for ONNX Runtime (default: one per core)")


def add_modules(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Where other modules are."""
    parser.add_argument(
        "--modules",
        required=required,
        metavar="WHERE",
        help="a folder of module folders, or a repository's address"
        + ("" if required else ": look there for more"),
    )
    parser.add_argument("--site", default="", help="of that repository: the modules that this site publishes")


def add_json(parser: argparse._ActionsContainer, what: str = "print the result as JSON on stdout") -> None:
    parser.add_argument("--json", action="store_true", help=what)


def add_force(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--force", action="store_true", help="overwrite files that are there already")


def add_logging(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("log, on stderr")
    group.add_argument("-v", "--verbose", action="count", default=0, help="say what is done; -vv says more")
    group.add_argument("--log-json", action="store_true", help="the same as lines of JSON")


def positional(given: Path | None, flag: Path | None, name: str, example: str) -> Path:
    """A bundle or store that may be given in its place or with the flag of earlier versions, in one of the two."""
    if given is not None and flag is not None:
        raise ConfigError(f"{given} and {flag}: which of them is the {name}? Give one")
    found = given or flag
    if found is None:
        raise ConfigError(f"which {name}? For example: {example}")
    return found


def check_vacant(force: bool, *files: Path | None) -> None:
    """Nothing is overwritten unawares."""
    for file in files:
        if file is not None and file.exists() and not force:
            raise ConfigError(f"{file}: is there already; overwrite it with --force, or give another name")


def print_json(value: object, indent: int | None = 2) -> None:
    """For machines: in ASCII, so that it is whole on every terminal."""
    print(json.dumps(encode(value), indent=indent, sort_keys=True, allow_nan=False), flush=True)


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Around imports: what is not installed is an error with the pip command of the whole command."""
    try:
        yield
    except ImportError as cause:
        name = str(cause).partition(" is not installed")[0] if isinstance(cause, MissingExtraError) else cause.name
        if name is None or name.startswith("pluto_edge") or name == "onnxruntime":
            raise
        runs = "export" in extra and find_spec("onnxruntime") is None  # every export is run once, to be compared
        raise MissingExtraError(name.partition(".")[0], f"{extra},cpu" if runs else extra) from cause
