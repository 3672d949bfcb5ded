"""`pluto repo`: the arguments of its actions; `repo_actions` does what they say."""

import argparse
from collections.abc import Callable
from pathlib import Path

from pluto_edge.cli.parsing import add_json, add_logging

Add = Callable[[argparse.ArgumentParser], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Publish bundles and modules for devices: a folder of plain files, for any web server or object store,\n"
        "signed with The Update Framework. What is added is staged; `publish` signs it and makes it visible."
    )
    parser.epilog = (
        "examples:\n"
        "  pluto repo init store/ --keys keys/                      # keys of all roles, and an empty repository\n"
        "  pluto repo add store/ bundle/ --name meter --version 1.0\n"
        "  pluto repo add store/ modules/fog                        # a module by itself\n"
        "  pluto repo publish store/ --keys keys/ --to s3://bucket/store\n"
        "  pluto repo revoke store/ meter@1.0 --reason 'wrong classes'\n"
        "\n"
        "`pluto repo ACTION --help` explains one action; docs/repository.md has the whole story."
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (summary, add) in ACTIONS.items():
        own = actions.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        add(own)
        add_logging(own)


def run(options: argparse.Namespace) -> int:
    from pluto_edge.cli import repo_actions

    return repo_actions.ACTIONS[options.action](options)


def _repository(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("repository", metavar="REPOSITORY", type=Path, help="its folder, which is what is served")


def _init(parser: argparse.ArgumentParser) -> None:
    _repository(parser)
    parser.add_argument(
        "--keys",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="for the keys of all roles, outside of the repository",
    )
    parser.add_argument(
        "--threshold",
        action="append",
        default=[],
        metavar="ROLE=N",
        help="signatures that a role needs (default: 1)",
    )
    parser.add_argument(
        "--days",
        action="append",
        default=[],
        metavar="ROLE=N",
        help="how long a role's metadata holds (default: root 365, targets 365, snapshot 30, timestamp 7)",
    )


def _keys(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", nargs="+", type=Path, metavar="FILE", help="private key to make, such as keys/lab.pem"
    )
    parser.add_argument(
        "--model", action="store_true", help="for model signatures: of the curve P-256, not Ed25519"
    )


def _add(parser: argparse.ArgumentParser) -> None:
    _repository(parser)
    parser.add_argument(
        "path", metavar="PATH", type=Path, help="a bundle, a module's folder of a store, or a store"
    )
    parser.add_argument("--name", help="of the bundle, as in addresses")
    parser.add_argument("--version", help="of the bundle; each is used once")
    parser.add_argument(
        "--channel",
        action="append",
        metavar="CHANNEL",
        help="that points at it; more than one may (default: stable)",
    )
    parser.add_argument("--notes", default="", help="what is new about it")
    parser.add_argument("--sign-with", type=Path, metavar="KEY", help="add an OpenSSF model signature")
    parser.add_argument("--site", default="", help="that signs these modules; `pluto repo delegate` makes one")


def _point(parser: argparse.ArgumentParser) -> None:
    _repository(parser)
    parser.add_argument("release", metavar="BUNDLE@VERSION", help="a release that is there")
    parser.add_argument("channel", metavar="CHANNEL", help="that points at it from then on")


def _publish(parser: argparse.ArgumentParser) -> None:
    _repository(parser)
    parser.add_argument(
        "--keys", type=Path, nargs="+", default=[], metavar="PATH", help="private keys, or folders of them"
    )
    parser.add_argument(
        "--to", metavar="ADDRESS", help="upload what is missing there, too: file://, s3://, gs://, ..."
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")


def _revoke(parser: argparse.ArgumentParser) -> None:
    _repository(parser)
    parser.add_argument("what", metavar="WHAT", help="BUNDLE@VERSION, or the name of a module")
    parser.add_argument("--reason", default="", help="that devices are told")
    parser.add_argument("--site", default="", help="that has published the module")


def _list(parser: argparse.ArgumentParser) -> None:
    _repository(parser)
    add_json(parser)


def _delegate(parser: argparse.ArgumentParser) -> None:
    _repository(parser)
    parser.add_argument("site", metavar="SITE", help="its name")
    parser.add_argument(
        "--key", type=Path, nargs="+", required=True, metavar="PUBLIC", help="the site's public keys"
    )
    parser.add_argument(
        "--threshold", type=int, default=1, metavar="N", help="signatures that are needed (default: 1)"
    )


def _rotate(parser: argparse.ArgumentParser) -> None:
    _repository(parser)
    parser.add_argument("role", choices=["root", "targets", "snapshot", "timestamp"], help="whose keys change")
    parser.add_argument(
        "--add", type=Path, nargs="+", default=[], metavar="PUBLIC", help="public keys that may sign"
    )
    parser.add_argument(
        "--remove", nargs="+", default=[], metavar="ID", help="keys that may not, by their ids' start"
    )
    parser.add_argument("--threshold", type=int, metavar="N", help="signatures that are needed")


def _sign(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="bundle that `pluto export` wrote")
    parser.add_argument("--key", type=Path, required=True, help="private key of `pluto repo keys --model`")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where it is written (default: BUNDLE.sig)")


def _verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="the folder of a bundle")
    parser.add_argument("--signature", type=Path, required=True, metavar="FILE", help="its OpenSSF model signature")
    parser.add_argument(
        "--key", type=Path, required=True, metavar="PUBLIC", help="the public key of who has signed it"
    )


ACTIONS: dict[str, tuple[str, Add]] = {
    "init": ("make a repository, and the keys of its roles", _init),
    "add": ("stage a bundle, or modules by themselves, after checking them", _add),
    "point": ("stage that a channel points at another release", _point),
    "revoke": ("stage that a release or a module is taken back", _revoke),
    "publish": ("sign what is staged, make it visible, and renew what expires", _publish),
    "list": ("show what is published and staged, and until when it holds", _list),
    "keys": ("make keys", _keys),
    "delegate": ("stage that a site signs its own modules", _delegate),
    "rotate": ("stage other keys, or another threshold, for a role; or a renewed root", _rotate),
    "sign": ("write an OpenSSF model signature of a bundle", _sign),
    "verify": ("check an OpenSSF model signature of a bundle", _verify),
}
