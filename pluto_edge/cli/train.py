"""`pluto train`."""

import argparse
import errno
import sys
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pluto_edge.cli.parsing import add_json, needs
from pluto_edge.errors import ConfigError, StoreError
from pluto_edge.modules import Kind
from pluto_edge.store import Store
from pluto_edge.train.api import IMAGE_SIZE, KIND, SIZES, train
from pluto_edge.train.corruptions import NAMES, SEVERITIES, choose_corruptions
from pluto_edge.train.recipe import LR, Recipe, SelectorRecipe

if TYPE_CHECKING:
    from pluto_edge.train.trainer import TrainReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Train one small module per source domain on a frozen timm ViT, one of all domains together (the\n"
        "generalist), and a selector over them, into a store.\n"
        "Folders: ROOT/<domain>/<class>/images, or ROOT/<domain>/train|val/<class>/images."
    )
    parser.epilog = (
        "examples:\n"
        "  pluto train --data photos/ --out store/ --backbone vit_small_patch16_224 --pretrained augreg_in21k\n"
        "  pluto train --data photos/ --out store/ --backbone vit_small_patch14_reg4_dinov2 \\\n"
        "              --weights dinov2s.safetensors --image-size 112\n"
        "  pluto train --data photos/ --into store/ --only fog        # one more domain, the others untouched\n"
        "  pluto train --data clean/ --out store/ ... --corruptions fog,snow --severities 1-5 --jobs 2\n"
        "\n"
        "A run that was stopped goes on where it was: give the same command with --into."
    )
    parser.add_argument("--data", required=True, type=Path, metavar="ROOT", help="folder of domain folders")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=Path, metavar="STORE", help="new store to write")
    where.add_argument("--into", type=Path, metavar="STORE", help="store to add to, or to go on with")
    parser.add_argument("--only", action="append", metavar="DOMAIN", help="this domain only (may be repeated)")
    parser.add_argument(
        "--no-generalist",
        dest="generalist",
        action="store_false",
        help="no module that learns from all domains together (the paper's; default: with two domains or more "
        "there is one, trained anew when a domain is added)",
    )
    add_backbone_arguments(parser.add_argument_group("backbone (with --out)"))
    add_recipe_arguments(parser.add_argument_group("recipe (the defaults suit a few hundred images a domain)"))
    add_selector_arguments(parser.add_argument_group("selector (the paper's: --withhold 0 --temperature 1)"))
    add_corruption_arguments(parser.add_argument_group("corruption domains, made from one clean folder"))
    running = parser.add_argument_group("running")
    running.add_argument("--jobs", type=int, default=1, help="domains trained at the same time (default: 1)")
    running.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="of torch, for each job (default: the cores, shared by the jobs)",
    )
    running.add_argument("--ray", action="store_true", help="spread the domains over the Ray cluster found")
    running.add_argument("--quiet", action="store_true", help="print nothing unless something is wrong")
    add_json(running, "print the report as JSON on stdout")


def add_backbone_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--backbone", metavar="NAME", help="timm name of a VisionTransformer")
    group.add_argument("--weights", type=Path, metavar="FILE", help="its weights, safetensors")
    group.add_argument("--pretrained", metavar="TAG", help="or timm's pretrained tag")
    group.add_argument("--image-size", type=int, help=f"a multiple of the patch size (default: {IMAGE_SIZE})")
    group.add_argument("--crop-pct", type=float, help="share of the image kept by the crop (default: 1)")
    group.add_argument("--kind", choices=get_args(Kind), help=f"prompts or adapters (default: {KIND})")
    group.add_argument("--prompts", type=int, help=f"prompt tokens (default: {SIZES['vpt']})")
    group.add_argument("--bottleneck", type=int, help=f"of adapters (default: {SIZES['adapter']})")


def add_recipe_arguments(group: argparse._ArgumentGroup) -> None:
    default = Recipe()
    helps = {
        "epochs": "at most",
        "batch": "images a batch",
        "lr": f"for 256 images a batch (default: {LR['vpt']} for prompts, {LR['adapter']} for adapters)",
        "head_lr": "of the head, AdamW",
        "weight_decay": "of AdamW; prompts get a hundredth",
        "warmup": "share of the epochs",
        "smoothing": "of the labels",
        "patch_drop": "share of the patches left out at random",
        "patience": "epochs without a better validation before it stops",
        "seed": "of everything",
        "precision": "of training passes, fp32 or bf16: half the time on a CPU with AVX512-BF16 or AMX",
    }
    for f in fields(Recipe):
        kind = float if f.name == "lr" else type(getattr(default, f.name))
        text = helps[f.name]
        shown = text if "default" in text else f"{text} (default: {getattr(default, f.name)})"
        group.add_argument(f"--{f.name.replace('_', '-')}", type=kind, default=getattr(default, f.name), help=shown)
    group.add_argument(
        "--per-class",
        type=int,
        metavar="N",
        help="at most N training images a class; every corruption domain draws its own",
    )
    group.add_argument(
        "--val-share", type=float, default=0.2, help="held out where there is no val/ (default: 0.2)"
    )


def add_selector_arguments(group: argparse._ArgumentGroup) -> None:
    default = SelectorRecipe()
    group.add_argument(
        "--withhold",
        type=float,
        default=default.withhold,
        metavar="SHARE",
        help="of lessons in which an image's own module is withheld, so that the selector learns what to do on "
        f"domains without one (default: {default.withhold})",
    )
    group.add_argument(
        "--temperature",
        type=float,
        help="divides the dot product when training starts (default: sqrt(d'), as in attention)",
    )
    group.add_argument(
        "--selector-images",
        type=int,
        metavar="N",
        help="images of each domain that it learns from, and as many to validate (default: all; every module "
        "looks at every one of them, so many modules want a bound)",
    )


def add_corruption_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--corruptions", metavar="LIST", help="comma-separated names, or all: " + ", ".join(NAMES))
    group.add_argument("--severities", default="1-5", help="for example 3, 1-5 or 1,3,5 (default: 1-5)")


def read_recipe(options: argparse.Namespace) -> Recipe:
    return Recipe(**{f.name: getattr(options, f.name) for f in fields(Recipe)})


def run(options: argparse.Namespace) -> int:
    """Every option is the argument of `train` that has its name."""
    with needs("train"):
        from pluto_edge.train.trainer import describe

    arguments = {name: value for name, value in vars(options).items() if name in signature(train).parameters}
    arguments |= {"only": options.only or (), "quiet": options.quiet or options.json, **read_corruptions(options)}
    try:
        result = train(**arguments)
    except KeyboardInterrupt:
        store = _begun(options)
        if store is None:
            raise
        print(f"pluto: interrupted; {go_on(store)}", file=sys.stderr)
        return 130
    except OSError as cause:
        store = _begun(options)
        if store is None or cause.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise StoreError(f"{cause.filename}: {cause.strerror}; make room. {go_on(store)}") from cause
    if options.json:
        print(describe(result))
    elif not options.quiet:
        show(result)
    return 0


def _begun(options: argparse.Namespace) -> Store | None:
    """The store that can be gone on with; None where the run was stopped before there was one."""
    try:
        return Store(options.into or options.out)
    except StoreError:
        return None


def go_on(store: Store) -> str:
    kept = store.names
    return (
        f"{store.path} holds {len(kept)} finished modules ({', '.join(kept) or 'none'}). "
        f"Go on with: --into {store.path}"
    )


def show(result: "TrainReport") -> None:
    from pluto_edge.train.report import summary, table

    print(table(result.matrix))
    print(f"\nall validation images: {summary(result)}")
    for problem in result.skipped[:10]:
        print(f"left out: {problem}")
    if len(result.skipped) > 10:
        print(f"left out: {len(result.skipped) - 10} more")
    print(f"\n{result.store}/README.md has this with a picture; next: pluto export {result.store}")


def read_corruptions(options: argparse.Namespace) -> dict[str, Any]:
    """Severities count only where there are corruptions."""
    if not options.corruptions:
        return {"corruptions": (), "severities": SEVERITIES}
    return {
        "corruptions": parse_corruptions(options.corruptions),
        "severities": parse_severities(options.severities),
    }


def parse_corruptions(text: str) -> tuple[str, ...]:
    return choose_corruptions("all" if text == "all" else text.split(","))


def parse_severities(text: str) -> tuple[int, ...]:
    try:
        first, _, last = text.partition("-")
        found = tuple(range(int(first), int(last) + 1)) if last else tuple(int(t) for t in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(1 <= s <= 5 for s in found):
        raise ConfigError(f"--severities: want 1 to 5, for example 3, 1-5 or 1,3,5; got {text!r}")
    return found
