"""A recorded stream as one page that needs nothing else."""

from base64 import b64encode
from collections.abc import Sequence
from html import escape

from pluto_edge._look import REPORT
from pluto_edge.observe import plot, summary
from pluto_edge.observe.recording import Recording
from pluto_edge.observe.words import explain
from pluto_edge.runtime.types import Event

__all__ = ["html", "page"]

SHOWN = 200  # events in the report
EVENTS = ("frame", "event", "")
NAMES = {"step": "learned", "rollback": "step taken back", "change": "change of domain"}


def page(recordings: Sequence[Recording]) -> str:
    """One page with everything in it, its pictures too."""
    return html(
        recordings, *(plot.png(recordings, dark, phone) for phone in (False, True) for dark in (False, True))
    )


def html(recordings: Sequence[Recording], light: bytes, dark: bytes, small_light: bytes, small_dark: bytes) -> str:
    """The page around the picture for both kinds of screen, and for those of phones.

    Of several runs the events are the first one's.
    """
    recording = recordings[0]
    header = recording.header
    conditions = summary.conditions(recordings)
    sources = ", ".join(dict.fromkeys(r.header.source for r in recordings))
    about = [
        ("bundle", f"{header.bundle}, {header.bundle_sha256[:12]}"),
        ("source", sources),
        ("started", header.started),
        ("learning", _learning(recording)),
        ("written by", header.writer),
    ]
    pictures = {"light": light, "dark": dark, "small_light": small_light, "small_dark": small_dark}
    events = [e for e in recording.events if e.kind != "gather"]
    note = f"<p>The last {SHOWN} of {len(events):,}.</p>" if len(events) > SHOWN else ""
    return PAGE.format(
        title=escape(sources),
        style=REPORT,
        verdict=escape(summary.verdict(recordings)),
        **{name: b64encode(data).decode() for name, data in pictures.items()},
        conditions=_table(conditions.header, conditions.rows, conditions.right),
        figures=_pairs(summary.figures(recordings)),
        about=_pairs(about),
        note=note,
        events=_table(EVENTS, [_event(e) for e in events[-SHOWN:]], (0,)),
    )


def _learning(recording: Recording) -> str:
    header = recording.header
    budget = "" if header.budget is None else f", budget {header.budget:g}"
    where = "in the background" if header.background else "inline"
    return f"batches of {header.batch}, a step every {header.every} frames, {where}{budget}"


def _event(event: Event) -> tuple[str, ...]:
    return f"{event.frame:,}", NAMES.get(event.kind, event.kind), explain(event)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        kinds = (' class="right"' if i in right else "" for i in range(len(cells)))
        return "".join(f"<{tag}{kind}>{escape(c)}</{tag}>" for c, kind in zip(cells, kinds, strict=True))

    head = f"<thead><tr>{line(header, 'th')}</tr></thead>"
    body = "".join(f"<tr>{line(r, 'td')}</tr>\n" for r in rows)
    return f'<div class="scroll"><table>{head}\n<tbody>{body}</tbody></table></div>'


def _pairs(pairs: Sequence[tuple[str, str]]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(n)}</dt><dd>{escape(v)}</dd>\n" for n, v in pairs) + "</dl>"


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>pluto replay <span>{title}</span></h1>
<section class="card"><p class="verdict">{verdict}</p></section>
<section class="card">
<h2>Over time</h2>
<picture>
<source media="(max-width: 899px) and (prefers-color-scheme: dark)" srcset="data:image/png;base64,{small_dark}">
<source media="(max-width: 899px)" srcset="data:image/png;base64,{small_light}">
<source media="(prefers-color-scheme: dark)" srcset="data:image/png;base64,{dark}">
<img alt="accuracy and module weights over the frames of the run" src="data:image/png;base64,{light}">
</picture>
</section>
<section class="card"><h2>Conditions</h2>
{conditions}</section>
<section class="card"><h2>Figures</h2>
{figures}</section>
<section class="card"><h2>Run</h2>
{about}</section>
<section class="card"><h2>Events</h2>
{note}
{events}</section>
</body>
</html>
"""
