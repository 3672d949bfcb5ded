"""A prediction as a small table for notebooks: label, confidence, and a bar of the modules that said so.

Plain values in, HTML out: this file imports nothing of ours, and needs no style sheet and no script.
"""

from collections.abc import Mapping, Sequence
from html import escape

__all__ = ["MOST_ROWS", "prediction_html"]

MOST_ROWS = 10  # images that are shown of a batch
COLOURS = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626", "#0891b2", "#64748b")


def prediction_html(
    classes: Sequence[str], confidence: Sequence[float], weights: Sequence[Mapping[str, float]]
) -> str:
    """A row for each image; `weights` has the modules of each, by name, heaviest first."""
    names = list(dict.fromkeys(name for one in weights for name in one))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    rows = "".join(
        f"<tr><td style='text-align:left'><b>{escape(label)}</b></td><td>{share:.0%}</td>"
        f"<td>{_bar(one, colours)}</td><td style='text-align:left'>{escape(_names(one))}</td></tr>"
        for label, share, one in list(zip(classes, confidence, weights, strict=True))[:MOST_ROWS]
    )
    more = len(classes) - MOST_ROWS
    rest = f"<tr><td colspan='4' style='text-align:left'>and {more} more images</td></tr>" if more > 0 else ""
    head = "<tr><th style='text-align:left'>class</th><th>confidence</th><th colspan='2'>modules</th></tr>"
    return f"<table>{head}{rows}{rest}</table>"


def _bar(weights: Mapping[str, float], colours: Mapping[str, str]) -> str:
    """12 em wide, split as the weights are."""
    parts = "".join(
        f"<span title='{escape(name)}' style='width:{100 * weight:.1f}%;background:{colours[name]}'></span>"
        for name, weight in weights.items()
    )
    return f"<span style='display:flex;width:12em;height:1em'>{parts}</span>"


def _names(weights: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {weight:.2f}" for name, weight in weights.items())
