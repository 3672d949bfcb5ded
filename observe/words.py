"""What happened, in words that an operator knows.

A change of domain comes with the figures that moved; whoever watches a camera wants to know what that means.
"""

import re

from pluto_edge.runtime.types import Event

__all__ = ["explain"]

LOOKS = re.compile(r"looks [\d.]+ deviations away")
MOVED = re.compile(r"(?P<name>.+) (?P<before>[\d.]+) to (?P<after>[\d.]+)")


def explain(event: Event) -> str:
    """Why it happened, or what a step did; reasons that are sentences already stay as they are."""
    if event.kind == "step":
        return f"{event.top}, {event.reliable} of {event.samples} frames were clear enough to learn from"
    if event.kind != "change":
        return event.reason
    return ", ".join(map(_part, event.reason.split(", ")))


def _part(text: str) -> str:
    if LOOKS.fullmatch(text):
        return "the picture looks different"
    moved = MOVED.fullmatch(text)
    if moved is None:
        return text
    before, after = float(moved["before"]), float(moved["after"])
    if moved["name"] == "entropy":
        return "it is less sure than before" if after > before else "it is surer than before"
    return f"{moved['name']} has {'more' if after > before else 'less'} say ({before:.0%}, now {after:.0%})"
