"""A recorded stream as one page that needs nothing else."""

from base64 import b64encode
from collections.abc import Sequence
from html import escape

from pluto_edge.observe import summary
from pluto_edge.observe.recording import Recording
from pluto_edge.runtime.types import Event

__all__ = ["html"]

SHOWN = 200  # events in the report


def html(recordings: Sequence[Recording], light: bytes, dark: bytes) -> str:
    """One page with everything in it; `light` and `dark` are the picture for both kinds of screen.

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
    events = [e for e in recording.events if e.kind != "gather"]
    note = f"<p>The last {SHOWN} of {len(events):,}.</p>" if len(events) > SHOWN else ""
    return PAGE.format(
        title=escape(sources),
        style=STYLE,
        light=b64encode(light).decode(),
        dark=b64encode(dark).decode(),
        conditions=_table(conditions.header, conditions.rows, conditions.right),
        figures=_pairs(summary.figures(recordings)),
        about=_pairs(about),
        note=note,
        events=_table(
            ("frame", "event", "", "top module", "reliable"), [_event(e) for e in events[-SHOWN:]], (0, 4)
        ),
    )


def _learning(recording: Recording) -> str:
    header = recording.header
    budget = "" if header.budget is None else f", budget {header.budget:g}"
    where = "in the background" if header.background else "inline"
    return f"batches of {header.batch}, a step every {header.every} frames, {where}{budget}"


def _event(event: Event) -> tuple[str, ...]:
    text = event.reason
    if event.kind == "step":
        text = f"entropy {event.entropy_before:.3f} to {event.entropy_after:.3f}"
    reliable = f"{event.reliable}/{event.samples}" if event.samples else ""
    return f"{event.frame:,}", event.kind, text, event.top, reliable


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        sides = ("right" if i in right else "left" for i in range(len(cells)))
        return "".join(f'<{tag} class="{s}">{escape(c)}</{tag}>' for c, s in zip(cells, sides, strict=True))

    head = f"<thead><tr>{line(header, 'th')}</tr></thead>"
    body = "".join(f"<tr>{line(r, 'td')}</tr>\n" for r in rows)
    return f'<div class="wide"><table>{head}\n<tbody>{body}</tbody></table></div>'


def _pairs(pairs: Sequence[tuple[str, str]]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(n)}</dt><dd>{escape(v)}</dd>\n" for n, v in pairs) + "</dl>"


STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #24292f; --faint: #6e7781; --line: #d8dee4; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #15191e; --ink: #e6e9ec; --faint: #9aa4ae; --line: #39424c; }
}
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
img { width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th { color: var(--faint); font-weight: 500; }
th, td { padding: .25rem 1.2rem .25rem 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
.left { text-align: left; }
.right { text-align: right; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.5rem; margin: 0; }
dt { color: var(--faint); }
dd { margin: 0; overflow-wrap: anywhere; }
"""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
<picture>
<source media="(prefers-color-scheme: dark)" srcset="data:image/png;base64,{dark}">
<img alt="accuracy and module weights over the frames of the run" src="data:image/png;base64,{light}">
</picture>
<h2>Conditions</h2>
{conditions}
<h2>Figures</h2>
{figures}
<h2>Run</h2>
{about}
<h2>Events</h2>
{note}
{events}
</body>
</html>
"""
