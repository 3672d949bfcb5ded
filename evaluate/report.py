"""results.json, results.md and report.html: one file each, with nothing to fetch from anywhere."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from pluto_edge._files import write_text
from pluto_edge._look import REPORT
from pluto_edge._schema import read_json, to_text
from pluto_edge.errors import ConfigError
from pluto_edge.evaluate.evaluation import Evaluation
from pluto_edge.evaluate.results import BLEND, ENSEMBLE, Protocol
from pluto_edge.evaluate.summary import MethodRow, TargetScore
from pluto_edge.evaluate.svg import bars, lines
from pluto_edge.evaluate.verdict import Comparison, Findings, chance, find, span
from pluto_edge.manifest import Bundle

RESULTS = "results.json"
SINGLES = "Every module as exported"
LESS = "less each row that needs no hindsight, in points."
SURE = (
    "In brackets the 95 % interval by paired bootstrap over images, each with its mean over the orders, and "
    "McNemar's exact p, of the images on which one is right in more orders than the other; for the average, of the "
    "images of all targets together."
)
REMEMBERED = "Adapted modules, each alone, on their own domains after each target"


def write(evaluation: Evaluation, protocol: Protocol, bundle: Bundle, out: Path) -> Findings:
    """All three; gives what they say."""
    findings = find(evaluation.results)
    facts = [*describe(evaluation, protocol, bundle), *left_out(evaluation, bundle)]
    data = {
        "verdict": findings.verdict,
        "facts": dict(facts),
        "left_out": evaluation.left_out,
        "skipped": evaluation.skipped,
        "rows": findings.rows,
        "ours": findings.ours,
        "against": findings.against,
    }
    write_text(out / RESULTS, to_text(data))
    write_text(out / "results.md", markdown(findings, evaluation, facts))
    write_text(out / "report.html", html(findings, evaluation, facts))
    return findings


def check_same(out: Path, protocol: Protocol, bundle: Bundle, targets: Sequence[str]) -> None:
    """A report of the same comparison goes on, with more methods or images; any other stays."""
    results = out / RESULTS
    if not results.is_file():
        return
    now = dict(describe(Evaluation((), {}), protocol, bundle))
    then = read_json(results, ConfigError).get("facts", {})
    images = [one.rpartition(" ")[0] for one in str(then.get("images", "")).split(", ")]
    differs = [what for what in ("bundle", "protocol") if then.get(what) != now[what]]
    if differs or images != list(targets):
        what = " and ".join(differs) or "target"
        raise ConfigError(
            f"{out}: has the report of a comparison with another {what}; overwrite it with --force, or "
            "write elsewhere with --out"
        )


def left_out(evaluation: Evaluation, bundle: Bundle) -> list[tuple[str, str]]:
    """Of each target, how many images the modules were made from, and what became of them."""
    seen = bundle.load_seen()
    if seen is None:
        return [("left out", "nothing: this bundle does not say which images it was trained on")]
    found = [(f"left out of {target}", str(images)) for target, images in evaluation.left_out.items()]
    unknown = seen.unknown(bundle.manifest.names)
    if unknown:
        found.append(("not known", f"which images these modules were trained on: {', '.join(unknown)}"))
    return found


def describe(evaluation: Evaluation, protocol: Protocol, bundle: Bundle) -> list[tuple[str, str]]:
    """What was compared, and how: bundle, modules, images and protocol, as pairs of a name and a text."""
    manifest = bundle.manifest
    counts = {r.target: len(r.truth) for r in evaluation.results}
    how = "online: predict, then learn, batch after batch"
    if protocol.shots is not None:
        how = f"{protocol.shots} shots: learn from that many images, then predict the others, frozen"
    if protocol.continual:
        how += "; what was learned goes on to the next target"
    own = [t for t in counts if t in manifest.names]
    facts = [
        ("bundle", f"{manifest.architecture}, {manifest.precision}, {bundle.hash[:16]}"),
        ("modules", f"{len(manifest.names)} {manifest.dims.kind}: {', '.join(manifest.names)}"),
        ("images", ", ".join(f"{t} {n}" for t, n in counts.items())),
        ("protocol", f"{how}; batches of {protocol.batch}; {protocol.seeds} order(s), {protocol.order}"),
    ]
    if own:
        facts.append(("domains that are known", f"{', '.join(own)}: there is a module of that name"))
    return facts


def percent(cell: TargetScore) -> str:
    """Mean and spread of an accuracy over the orders, in percent."""
    return f"{100 * cell.mean:.1f} ± {100 * cell.spread:.1f}"


def cells(row: MethodRow, targets: Sequence[str]) -> list[str]:
    """A row's accuracies by target and on average, as texts for a table."""
    average = f"{100 * row.mean:.1f} ± {100 * row.spread:.1f}"
    return [*(percent(row.cells[t]) for t in targets), average]


def fallen(table: Sequence[MethodRow]) -> list[str]:
    """One line for every row and target that collapsed in some order."""
    return [
        f"{row.label} on {target}: in {len(cell.collapsed)} of {len(cell.accuracies)} orders ({cell.collapsed[0]})"
        for row in table
        for target, cell in row.cells.items()
        if cell.collapsed
    ]


def singles(table: Sequence[MethodRow]) -> list[tuple[str, list[str]]]:
    """Every module without adaptation: accuracy on each target, and the average; empty if `single` was not run."""
    row = next((r for r in table if r.method == "single" and r.part == ENSEMBLE), None)
    found = list(row.cells.values()) if row else []
    return [(name, _line([cell.modules[name] for cell in found])) for name in (found[0].modules if found else ())]


def remembered(table: Sequence[MethodRow]) -> list[tuple[str, list[str]]]:
    """By method: accuracy of the modules on their own domains after each target, and the average; maybe empty."""
    return [
        (row.method, _line(kept))
        for row in table
        if row.part in (ENSEMBLE, BLEND)
        and (kept := [cell.kept for cell in row.cells.values() if cell.kept is not None])
    ]


def _line(values: Sequence[float]) -> list[str]:
    return [f"{100 * v:.1f}" for v in (*values, sum(values) / len(values))]


def difference(c: Comparison) -> str:
    """In points, with its interval and p."""
    return f"{100 * c.difference:+.1f} ({span(c)}, {chance(c.p)})"


def markdown(findings: Findings, evaluation: Evaluation, facts: Sequence[tuple[str, str]]) -> str:
    """The report as `results.md` has it."""
    table = findings.rows
    targets = list(table[0].cells)
    text = ["# Evaluation", "", findings.verdict, "", *(f"- {name}: {value}" for name, value in facts), ""]
    text += ["Accuracy in %, mean ± standard deviation over the orders. ⚠ collapsed, see below.", ""]
    text += [f"| method | {' | '.join([*targets, 'average'])} |", "|---|" + "---:|" * (len(targets) + 1)]
    for row in table:
        values = cells(row, targets)
        marks = ["⚠ " if row.cells[t].collapsed else "" for t in targets] + [""]
        text.append(f"| {row.label} | {' | '.join(m + v for m, v in zip(marks, values, strict=True))} |")
    if findings.against:
        text += ["", f"{findings.ours} {LESS} {SURE}", ""]
        text += [f"| | {' | '.join([*targets, 'average'])} |", "|---|" + "---:|" * (len(targets) + 1)]
        for one in findings.against:
            shown = [difference(c) for c in (*one.targets.values(), one.average)]
            text.append(f"| {one.rival} | {' | '.join(shown)} |")
    for title, found in (SINGLES, singles(table)), (REMEMBERED, remembered(table)):
        if found:
            text += ["", f"{title}, %:", "", f"| | {' | '.join([*targets, 'average'])} |"]
            text += ["|---|" + "---:|" * (len(targets) + 1), *(f"| {n} | {' | '.join(v)} |" for n, v in found)]
    down = fallen(table)
    if down:
        text += ["", "Collapsed:", "", *(f"- {line}" for line in down)]
    if evaluation.skipped:
        text += ["", "Not run:", "", *(f"- {name}: {reason}" for name, reason in evaluation.skipped.items())]
    return "\n".join(text) + "\n"


def html(findings: Findings, evaluation: Evaluation, facts: Sequence[tuple[str, str]]) -> str:
    """The report as one page with pictures, which fetches nothing."""
    table = findings.rows
    targets = list(table[0].cells)
    shown = [row for row in table if row.part != "worst"]
    followed = [row for row in table if row.part in (ENSEMBLE, BLEND)]
    down = "".join(f"<li class=down>{escape(line)}</li>" for line in fallen(table))
    not_run = "".join(f"<li>{escape(name)}: {escape(why)}</li>" for name, why in evaluation.skipped.items())
    return "".join(
        [
            "<!doctype html><html lang=en><meta charset=utf-8>",
            "<meta name=viewport content='width=device-width, initial-scale=1'>",
            f"<title>pluto eval</title><style>{REPORT}</style><h1>pluto eval</h1>",
            f"<section class=card><p class=verdict>{escape(findings.verdict)}</p></section>",
            _card(
                "Average over the targets",
                "Accuracy with its deviation over the orders. Red: the row that is compared with the others. Grey: "
                "the best module, known in hindsight only.",
                bars([(row.label, row.mean, row.spread, row.part != "best") for row in shown], findings.ours),
            ),
            _card(
                "Accuracy, %",
                "Mean ± standard deviation over the orders of the stream. Bold: the best that needs no hindsight. "
                "Orange: collapsed in at least one order. Pointing at a figure shows its 95 % interval over "
                "images.",
                _table(table, targets),
            ),
            _against(findings, targets),
            *(
                _card(
                    f"{target}: accuracy along the stream",
                    "Where curves lie on each other, they take turns.",
                    lines([(row.label, row.cells[target].curve) for row in followed], findings.ours),
                )
                for target in targets
            ),
            _plain(SINGLES, singles(table), targets),
            _plain(REMEMBERED, remembered(table), targets),
            _card("Collapsed", "", f"<ul>{down}</ul>") if down else "",
            _card("Not run", "", f"<ul>{not_run}</ul>") if not_run else "",
            _card("What was compared", "", _facts(facts)),
            _card("What the runs noted", "", _notes(table)),
            "</html>\n",
        ]
    )


def _card(title: str, text: str, content: str) -> str:
    said = f"<p>{escape(text)}</p>" if text else ""
    return f"<section class=card><h2>{escape(title)}</h2>{said}<div class=scroll>{content}</div></section>"


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(value)}</dd>' for name, value in facts)}</dl>"


def _table(table: Sequence[MethodRow], targets: Sequence[str]) -> str:
    fair = [row for row in table if row.fair]
    best = {t: max(row.cells[t].mean for row in fair) for t in targets} if fair else {}
    top = max((row.mean for row in fair), default=0.0)
    body = []
    for row in table:
        parts = []
        for target, value in zip(targets, cells(row, targets), strict=False):
            cell = row.cells[target]
            kinds = ["best"] if row in fair and cell.mean == best[target] else []
            kinds += ["down"] if cell.collapsed else []
            title = f"{cell.module} {_interval(cell)}".strip()
            parts.append(
                f"<td class='{' '.join(['right', *kinds])}' title='{escape(title, quote=True)}'>{value}</td>"
            )
        kind = "right best" if row in fair and row.mean == top else "right"
        parts.append(f"<td class='{kind}' title='{_interval(row)}'>{cells(row, targets)[-1]}</td>")
        mine = " class=mine" if row.part == BLEND else ""
        body.append(f"<tr{mine}><td>{escape(row.label)}</td>{''.join(parts)}</tr>")
    return f"<table>{_head('method', targets)}{''.join(body)}</table>"


def _head(first: str, targets: Sequence[str]) -> str:
    names = "".join(f"<th class=right>{escape(t)}</th>" for t in [*targets, "average"])
    return f"<tr><th>{first}</th>{names}</tr>"


def _interval(found: TargetScore | MethodRow) -> str:
    low, high = found.interval
    return f"{100 * low:.1f} to {100 * high:.1f}"


def _against(findings: Findings, targets: Sequence[str]) -> str:
    if not findings.against:
        return ""
    body = []
    for one in findings.against:
        parts = []
        for c in (*one.targets.values(), one.average):
            kind = "right" if not c.significant else "right best" if c.difference > 0 else "right best down"
            parts.append(
                f"<td class='{kind}'>{100 * c.difference:+.1f}<br><small>{span(c)}, {chance(c.p)}</small></td>"
            )
        body.append(f"<tr><td>{escape(one.rival)}</td>{''.join(parts)}</tr>")
    return _card(
        f"{findings.ours} against the others, points",
        f"{findings.ours} {LESS} {SURE} Bold: significant; orange: behind.",
        f"<table>{_head('', targets)}{''.join(body)}</table>",
    )


def _plain(title: str, values: Sequence[tuple[str, list[str]]], targets: Sequence[str]) -> str:
    if not values:
        return ""
    body = "".join(
        f"<tr><td>{escape(n)}</td>{''.join(f'<td class=right>{c}</td>' for c in cells)}</tr>" for n, cells in values
    )
    return _card(f"{title}, %", "", f"<table>{_head('', targets)}{body}</table>")


def _notes(table: Sequence[MethodRow]) -> str:
    body = []
    for row in table:
        if row.part not in (ENSEMBLE, BLEND):
            continue
        said = ", ".join(f"{k} {v:g}" for k, v in row.notes.items())
        body.append(
            f"<tr><td>{escape(row.method)}</td><td class=right>{row.seconds:.1f} s</td><td>{escape(said)}</td></tr>"
        )
    return f"<table><tr><th>method</th><th class=right>time</th><th>counts</th></tr>{''.join(body)}</table>"
