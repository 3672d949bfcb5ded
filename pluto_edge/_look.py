"""One look for all that people see: the pages of streams and cameras, the reports of replay and eval, and pictures.

Colours are here and nowhere else. Pages and reports have them as variables of their stylesheet, `REPORT`, `PAGE` or
`STREAM`, in light and dark; pictures take them from `LIGHT` and `DARK`.
"""

__all__ = ["DARK", "LIGHT", "PAGE", "REPORT", "SERIES", "STREAM", "Theme"]

Theme = dict[str, str]

SERIES = 7  # colours m0, m1, ... that tell modules and methods apart

LIGHT: Theme = {
    "ground": "#f5f5f2",  # behind everything
    "card": "#ffffff",  # behind text and charts
    "ink": "#1c1d20",
    "muted": "#5c6066",
    "line": "#e3e3de",
    "track": "#ededea",  # of bars, and conditions that no module was made for
    "accent": "#0068a3",
    "good": "#00795a",
    "bad": "#b84a00",
    "ours": "#c8354a",  # what adapts, beside what does not
    # Okabe and Ito's colours: told apart by colour-blind eyes too
    "m0": "#0072b2",
    "m1": "#e69f00",
    "m2": "#009e73",
    "m3": "#d55e00",
    "m4": "#cc79a7",
    "m5": "#56b4e9",
    "m6": "#dccf1f",
    "others": "#a5a8ac",  # modules that share a colour, and the generalist
}
DARK: Theme = LIGHT | {
    "ground": "#0e1114",
    "card": "#15191e",
    "ink": "#ecebe8",
    "muted": "#a2a6ab",
    "line": "#2c3138",
    "track": "#262b31",
    "accent": "#62b8ea",
    "good": "#3ec49b",
    "bad": "#f08a4b",
    "ours": "#ff7d8c",
    "m0": "#2b8fce",
    "m6": "#f0e442",
    "others": "#74787d",
}


def _variables(theme: Theme) -> str:
    return "".join(f" --{name}: {colour};" for name, colour in theme.items())


# what all of them have
_STYLE = f"""
:root {{ color-scheme: light dark;{_variables(LIGHT)} }}
@media (prefers-color-scheme: dark) {{
  :root {{{_variables({n: c for n, c in DARK.items() if c != LIGHT[n]})} }}
}}
* {{ box-sizing: border-box; margin: 0; }}
html {{ background: var(--ground); color: var(--ink); -webkit-text-size-adjust: 100%; }}
body {{
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
  font-variant-numeric: tabular-nums; max-width: 1240px; margin: 0 auto;
  padding: 16px max(16px, env(safe-area-inset-right)) 24px max(16px, env(safe-area-inset-left));
}}
h1 {{ font-size: 17px; font-weight: 650; letter-spacing: -.01em; overflow-wrap: anywhere; }}
h1 span {{ color: var(--muted); font-weight: 400; }}
h2 {{ font-size: 13px; font-weight: 600; color: var(--muted); }}
.card {{
  background: var(--card); border: 1px solid var(--line); border-radius: 14px; padding: 16px; min-width: 0;
}}
.verdict {{
  font-size: 17px; line-height: 1.4; padding-left: 12px; border-left: 4px solid var(--accent);
  overflow-wrap: anywhere;
}}
"""

# what reports have and pages have not
REPORT = (
    _STYLE
    + """
body > h1 { margin-bottom: 16px; }
.card { margin-top: 16px; }
.card > h2 { font-size: 15px; color: var(--ink); margin-bottom: 8px; }
.card p { color: var(--muted); font-size: 14px; margin-bottom: 10px; max-width: 46em; overflow-wrap: anywhere; }
.card p.verdict { color: inherit; font-size: 17px; margin: 0; max-width: none; }
.card ul { padding-left: 1.2em; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; }
th { color: var(--muted); font-weight: 500; }
th, td { padding: 4px 18px 4px 0; border-bottom: 1px solid var(--line); white-space: nowrap; text-align: left; }
.right { text-align: right; }
td small { color: var(--muted); }
.best { font-weight: 700; }
.down { color: var(--bad); }
tr.mine td { background: var(--track); }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 3px 20px; }
dt { color: var(--muted); }
dd { overflow-wrap: anywhere; }
img, svg { display: block; max-width: 100%; height: auto; }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; fill: var(--ink); }
svg .axis { fill: var(--muted); }
svg .grid { stroke: var(--line); }
svg.phone { display: none; }
@media (max-width: 899px) { picture img { width: min(100%, 560px); } }
@media (max-width: 719px) {
  svg.desk { display: none; }
  svg.phone { display: block; width: 100%; }
  /* the names stay where they are while the numbers are moved */
  td:first-child, th:first-child {
    position: sticky; left: 0; background: var(--card); white-space: normal; max-width: 9em;
  }
  dl { grid-template-columns: minmax(0, 1fr); gap: 0; }
  dd { margin-bottom: 6px; }
}
"""
)

# what pages that go on have, and reports have not
PAGE = (
    _STYLE
    + """
[hidden] { display: none !important; }
header { display: flex; flex-wrap: wrap; align-items: center; gap: 10px 18px; margin-bottom: 16px; }
#status { font-size: 14px; color: var(--muted); margin-right: auto; }
button {
  font: inherit; font-weight: 550; min-height: 44px; min-width: 88px; padding: 0 18px; cursor: pointer;
  color: var(--ink); background: var(--card); border: 1px solid var(--line); border-radius: 10px;
}
button:hover { border-color: var(--muted); }
:is(button, a, summary, .scroll):focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
button:disabled { opacity: .5; cursor: default; }
main { transition: opacity .3s; }
main.gone { opacity: .45; }
.none { color: var(--muted); font-size: 14px; }
#toast {
  position: fixed; left: 50%; bottom: 20px; transform: translateX(-50%); max-width: calc(100vw - 32px);
  width: max-content; padding: 11px 18px; border-radius: 10px; background: var(--ink); color: var(--ground);
  font-size: 14px; overflow-wrap: anywhere; opacity: 0; pointer-events: none; transition: opacity .2s;
}
#toast.on { opacity: 1; }
#toast.bad { background: #b84a00; color: #fff; }
.aside {
  position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap;
}
@media (prefers-reduced-motion: reduce) { * { transition: none !important; } }
"""
)

# what the page of a stream has, on a server and in the browser
STREAM = (
    PAGE
    + """
:root { --shadow: 0 1px 2px rgb(0 0 0 / .05), 0 4px 16px rgb(0 0 0 / .04); }
@media (prefers-color-scheme: dark) { :root { --shadow: none; } }

#status { display: flex; align-items: center; gap: 8px; }
#status::before { content: ""; width: 9px; height: 9px; border-radius: 50%; background: var(--others); }
#status[data-is="live"]::before { background: var(--good); }
#status[data-is="gone"] { color: var(--bad); }
#status[data-is="gone"]::before { background: var(--bad); }
.buttons { display: flex; gap: 8px; }
button.danger { color: var(--bad); }

main { display: grid; gap: 16px; grid-template-columns: minmax(0, 1fr); }
.card { box-shadow: var(--shadow); }
.card > h2 { margin-bottom: 10px; }
.column { display: grid; gap: 16px; align-content: start; grid-template-columns: minmax(0, 1fr); }

.see { padding: 0; overflow: hidden; }
.camera {
  position: relative; aspect-ratio: 1; background: #0b0c0d; display: grid; place-items: center; overflow: hidden;
}
.camera p { color: #b9bcc0; font-size: 14px; padding: 16px; text-align: center; }
.said { padding: 16px; min-width: 0; }
#label {
  font-size: clamp(28px, 9vw, 44px); font-weight: 680; line-height: 1.1; letter-spacing: -.02em;
  overflow-wrap: anywhere;
}
#confidence { color: var(--muted); margin-top: 4px; }
.meter { height: 6px; border-radius: 3px; background: var(--track); overflow: hidden; margin-top: 10px; }
.meter i {
  display: block; height: 100%; width: 0; background: var(--accent); border-radius: 3px; transition: width .2s;
}

.bars { list-style: none; padding: 0; display: grid; gap: 10px; }
.bars li { display: grid; grid-template-columns: minmax(0, 1fr) auto; gap: 3px 10px; font-size: 14px; }
.bars .name { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.bars .value { color: var(--muted); }
.bars .meter { grid-column: 1 / -1; margin: 0; height: 8px; border-radius: 4px; }
.bars .meter i { border-radius: 4px; opacity: .86; }

.metrics { display: grid; gap: 14px 12px; }
.metrics dt { font-size: 13px; color: var(--muted); white-space: nowrap; }
.metrics dd { font-size: 21px; font-weight: 600; letter-spacing: -.01em; white-space: nowrap; }
.metrics dd small { font-size: 13px; font-weight: 400; color: var(--muted); letter-spacing: 0; }
.metrics dd + dd {
  font-size: 12px; font-weight: 400; color: var(--muted); letter-spacing: 0; white-space: normal;
}

.key {
  display: flex; flex-wrap: wrap; gap: 2px 16px; margin: 0 0 8px; padding: 0; list-style: none;
  font-size: 12px; color: var(--muted);
}
.key li { display: flex; align-items: center; gap: 6px; }
.key i { width: 12px; height: 12px; border-radius: 3px; flex: none; }

.scroll { max-height: 252px; overflow-y: auto; overscroll-behavior: contain; border-radius: 6px; }
#events { list-style: none; padding: 0; font-size: 14px; }
#events li {
  display: grid; gap: 0 12px; align-items: baseline; padding: 7px 2px; border-top: 1px solid var(--line);
}
#events li:first-child { border-top: 0; }
#events b { font-weight: 600; }
#events .why { color: var(--muted); overflow-wrap: anywhere; }
#events .when { color: var(--muted); font-size: 13px; white-space: nowrap; }

dialog {
  margin: auto; border: 1px solid var(--line); border-radius: 16px; padding: 22px;
  max-width: min(400px, calc(100vw - 32px)); background: var(--card); color: var(--ink);
}
dialog::backdrop { background: rgb(0 0 0 / .4); }
dialog h2 { font-size: 17px; color: var(--ink); margin-bottom: 6px; }
dialog p { color: var(--muted); margin-bottom: 18px; }
dialog .buttons { justify-content: flex-end; }
dialog .danger { background: #b84a00; border-color: #b84a00; color: #fff; }

@media (max-width: 559px) {
  header .buttons { width: 100%; }
  header .buttons button { flex: 1; min-width: 0; }
}
@media (min-width: 560px) { .column:first-child { grid-template-columns: repeat(2, minmax(0, 1fr)); } }
@media (min-width: 900px) {
  main { grid-template-columns: 312px minmax(0, 1fr); }
  .column:first-child { grid-template-columns: minmax(0, 1fr); }
  body { padding-top: 24px; }
}
"""
)
