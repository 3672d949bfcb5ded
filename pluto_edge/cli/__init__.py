"""`pluto`: one command with subcommands, each loaded only when it is used."""

import io
import logging
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from time import perf_counter
from types import ModuleType

from pluto_edge._text import is_address, printable
from pluto_edge.cli import logs, settings
from pluto_edge.cli.parsing import Parser, add_logging, with_bundle
from pluto_edge.errors import PlutoError
from pluto_edge.version import WRITER

# what each subcommand does; the module of its name has `add_arguments` and `run`, which imports what is heavy
COMMANDS = {
    "train": "train modules and a selector from labelled folders into a store",
    "signatures": "add signatures to the modules of an older store",
    "export": "compile a module store into a bundle of ONNX graphs",
    "web": "make a static page that runs a bundle in the browser",
    "predict": "say what images, a video or a camera show; never learns",
    "stream": "watch a camera, a video or a folder frame by frame, and adapt to it",
    "serve": "run many cameras as a service, with a page, metrics and health checks",
    "run": "feed folders of images to a bundle in batches, with and without learning",
    "suggest": "say which modules of a repository were made for what a camera sees",
    "harvest": "write what a device has learned as a module to offer",
    "replay": "make a picture and a report of a recorded stream",
    "eval": "compare adaptation methods on a bundle and labelled folders",
    "build": "train, export, measure and publish a repository, in one command",
    "matrix": "measure every module on every domain",
    "corrupt": "write or preview the 15 common corruptions of images",
    "bench": "measure what a bundle costs on this device",
    "tune": "measure how a bundle runs fastest on this device, and keep it",
    "repo": "publish bundles and modules for devices, signed",
    "pull": "fetch a bundle, or modules, from a repository",
    "sync": "bring everything that was pulled up to date",
    "verify": "hash everything that was pulled, and fetch again what is damaged",
    "info": "describe a store or a bundle",
    "upgrade": "carry a store, a bundle or a saved state over from an older version",
    "doctor": "check what this machine has and what is slow or broken about it",
    "completion": "print a script that completes `pluto` in a shell",
}
FOOT = "Options may be in a TOML file: `pluto {} config.toml`; the command line wins over it."

log = logging.getLogger("pluto_edge.cli")


def main(argv: Sequence[str] | None = None) -> int:
    """Run `pluto`; errors that are the user's to solve are one line on stderr and exit code 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return guarded("pluto", lambda: _run(arguments))


def guarded(program: str, run: Callable[[], int]) -> int:
    """What `run` gives; the user's errors are one line on stderr, and what is printed never breaks a terminal."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # not every terminal has every character
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return run()
    except BrokenPipeError:  # nobody reads on; what is still to be flushed goes nowhere
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (PlutoError, OSError, UnicodeEncodeError) as error:
        text = "\n".join(map(printable, str(error).split("\n")))  # shown, not done
        if isinstance(error, UnicodeEncodeError):
            text = f"a name is no text in this locale ({text}); set PYTHONUTF8=1"
        if logs.on():
            log.error(text)
        else:
            print(f"{program}: error: {text}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return 130


def command_parser(name: str) -> tuple[Parser, Parser, ModuleType | None]:
    """`pluto`'s parser, that of the command `name`, and the module that runs it."""
    parser = Parser(
        prog="pluto",
        description="Ship a frozen Vision Transformer with plug-in domain modules.",
        epilog="`pluto COMMAND --help` explains one command.",
    )
    parser.add_argument("--version", action="version", version=WRITER)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    own, implementation = parser, None
    for command, summary in COMMANDS.items():
        added = commands.add_parser(command, help=summary)
        if command == name:
            own, implementation = added, import_module(f"pluto_edge.cli.{name}")
            implementation.add_arguments(own)
            if not _takes_toml(implementation):
                usage = f"{name} ACTION" if own.actions else name
                own.epilog = f"{own.epilog or ''}\n\n{FOOT.format(usage)}".strip()
            add_logging(own)
    return parser, own, implementation


def parse(arguments: Sequence[str]) -> tuple[Namespace, ModuleType]:
    """The options of a command line, and the module that runs them."""
    name, rest = (arguments[0], list(arguments[1:])) if arguments else ("", [])
    words = [name]
    parser, own, implementation = command_parser(name)
    if implementation is not None:
        if rest and rest[0] in own.actions:
            words.append(rest.pop(0))
            own = own.actions[words[-1]]
        if rest and rest[0].endswith(settings.SUFFIX) and not _takes_toml(implementation):
            settings.apply(own, Path(rest.pop(0)), name, COMMANDS, rest)
        own.check_options(rest)
    options, more = parser.parse_known_args([*words, *rest] if arguments else [])
    if more:
        own.error(f"unrecognized arguments: {' '.join(more)}")
    assert implementation is not None  # else argparse has ended the program
    return options, implementation


def _run(arguments: Sequence[str]) -> int:
    options, implementation = parse(arguments)
    with logs.shown(options.verbose, options.log_json):
        began = perf_counter()
        given = _public(options)
        said = ", ".join(f"{name} {value}" for name, value in given.items() if value not in (None, False, []))
        fields = {"command": options.command, "options": given}
        log.info("pluto %s: %s", options.command, said, extra={"fields": fields})
        code = guarded("pluto", lambda: int(implementation.run(with_bundle(options))))
        seconds = perf_counter() - began
        ended = {"seconds": round(seconds, 3), "code": code}
        log.info("pluto %s: ended after %.1f s with %d", options.command, seconds, code, extra={"fields": ended})
    return code


def _takes_toml(implementation: ModuleType) -> bool:
    """Whether a TOML file is the command's argument, and no file of its options."""
    return bool(getattr(implementation, "TAKES_TOML", False))


def _public(options: Namespace) -> dict[str, object]:
    """Options as they may be in a log: of addresses and tokens nothing that opens anything."""
    secret = {"command", "token", "source", "sources"}
    return {name: value for name, value in vars(options).items() if name not in secret and not is_address(value)}


def export_main() -> int:
    """`pluto-export` is `pluto export`."""
    return main(["export", *sys.argv[1:]])
