"""One look for all that people see: the page of a stream, the reports of replay and eval, and pictures.

Colours are here and nowhere else. The page and the reports have them as variables of `STYLE`, in light and dark;
pictures take them from `LIGHT` and `DARK`.
"""

__all__ = ["DARK", "LIGHT", "REPORT", "SERIES", "STYLE", "Theme"]

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


STYLE = f"""
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

# what reports have and the page has not
REPORT = """
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
