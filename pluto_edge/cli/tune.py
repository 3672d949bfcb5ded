"""`pluto tune`: how a bundle runs fastest on this device, measured and kept."""

import argparse
from pathlib import Path

from pluto_edge import _text
from pluto_edge._progress import say
from pluto_edge.bench.tune import ROUNDS, tune
from pluto_edge.cli.parsing import add_bundle, add_force, add_json, check_vacant, print_json
from pluto_edge.manifest import Bundle
from pluto_edge.runtime.engine.plan import PlanFile, PlanKey, plan_file
from pluto_edge.runtime.engine.session import Engine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measure, in seconds, which way of running a bundle's graphs is the fastest on this device: threads,\n"
        "providers, prepacked weights, images at a time. What is used without a plan is always among the ways,\n"
        "and stays unless another is clearly faster. The plan is kept for this CPU, these versions and this\n"
        "bundle, and every runtime of the bundle follows it from then on. Predictions stay the same."
    )
    parser.epilog = (
        "examples:\n"
        "  pluto tune bundle/                         # kept where `pluto doctor` shows it\n"
        "  pluto tune bundle/ --lean                  # nothing that needs a second copy of the weights in memory\n"
        '  pluto tune bundle/ --out state/plan.json   # for Runtime("bundle/", plan="state/plan.json")\n'
        "  pluto tune bundle/ --forget                # without a plan again"
    )
    add_bundle(parser)
    parser.add_argument("--providers", default="auto", help="auto, cpu or cuda (default: auto)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of every duel (default: {ROUNDS})")
    parser.add_argument("--lean", action="store_true", help="no second copy of weights in memory")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the plan there, and nowhere else")
    parser.add_argument("--forget", action="store_true", help="delete the plan that is kept, and measure nothing")
    add_force(parser)
    add_json(parser, "print the plan, and all that was measured, as JSON on stdout")


def run(options: argparse.Namespace) -> int:
    check_vacant(options.force, options.out)
    bundle = Bundle(options.bundle)
    key = PlanKey.of(bundle.hash, Engine.of(bundle.manifest.precision, options.providers).provider)
    path = options.out or plan_file(key)
    if options.forget:
        there = path.exists()
        path.unlink(missing_ok=True)
        print(f"{path}: {'deleted' if there else 'there is none'}")
        return 0
    found = tune(bundle, options.providers, rounds=options.rounds, lean=options.lean, on_stage=_progress)
    found.write(path)
    if options.json:
        print_json(found)
    else:
        print(as_text(found, path))
    return 0


def as_text(found: PlanFile, path: Path) -> str:
    about = _text.pairs([("plan", found.plan), ("for", found.key.cpu), ("kept in", path)])
    rows = [(_text.tick(True) if t.taken else "", t.what, f"{t.ratio:.2f}") for t in found.trials]
    measured = _text.table(("", "measured", "time, over the way before"), rows, right=(2,))
    busy = (
        f"\n\nwarning: the machine is busy, threads were not tried: {'; '.join(found.busy)}" if found.busy else ""
    )
    return f"{about}\n\n{measured}{busy}"


def _progress(stage: str) -> None:
    say(f"... {stage}")
