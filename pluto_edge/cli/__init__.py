"""`pluto`: one command with subcommands, each loaded only when it is used."""

import argparse
import io
import sys
from collections.abc import Sequence
from importlib import import_module

from pluto_edge._text import printable
from pluto_edge.errors import PlutoError
from pluto_edge.version import WRITER

# what each subcommand does; the module of its name has `add_arguments` and `run`, which imports what is heavy
COMMANDS = {
    "train": "train modules and a selector from labelled folders into a store",
    "signatures": "add signatures to the modules of an older store",
    "export": "compile a module store into a bundle of ONNX graphs",
    "run": "feed folders of images to a bundle and adapt on the way",
    "replay": "make a picture and a report of a recorded stream",
    "eval": "compare adaptation methods on a bundle and labelled folders",
    "corrupt": "write or preview the 15 common corruptions of images",
    "bench": "measure what a bundle costs on this device",
    "info": "describe a store or a bundle",
    "upgrade": "carry a store, a bundle or a saved state over from an older version",
    "doctor": "check what this machine has and what is slow or broken about it",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `pluto`; errors that are the user's to solve are one line on stderr and exit code 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # not every terminal has every character
        sys.stdout.reconfigure(errors="backslashreplace")
    parser = argparse.ArgumentParser(
        prog="pluto",
        description="Ship a frozen Vision Transformer with plug-in domain modules.",
        epilog="`pluto COMMAND --help` explains one command.",
    )
    parser.add_argument("--version", action="version", version=WRITER)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((a for a in arguments if a in COMMANDS), None)
    try:
        for name, summary in COMMANDS.items():
            command = commands.add_parser(name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter)
            if name == chosen:
                implementation = import_module(f"pluto_edge.cli.{name}")
                implementation.add_arguments(command)
        options = parser.parse_args(arguments)
        return int(implementation.run(options))
    except PlutoError as error:
        print(f"pluto: error: {_readable(error)}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 141
    except OSError as error:
        print(f"pluto: error: {_readable(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("pluto: interrupted", file=sys.stderr)
        return 130


def _readable(error: Exception) -> str:
    """Lines stay lines; whatever else a file may have put into a message is shown, not done."""
    return "\n".join(map(printable, str(error).split("\n")))


def export_main() -> int:
    """`pluto-export` is `pluto export`."""
    return main(["export", *sys.argv[1:]])
