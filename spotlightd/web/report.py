"""The report of a run: one HTML file that needs nothing else, for a phone and the dark too."""

import base64
from collections.abc import Iterable, Sequence
from html import escape

from spotlightd.web.chart import render_chart
from spotlightd.web.report_data import AgentBar, EventLine, Figure, Picture, PictureRow, ReportData

CLASSES = ("useful", "wasted", "loading", "idle")

STYLE = """
:root{--paper:#fff;--ink:#1b1f24;--dim:#667;--line:#dde1e6;--c0:#2563eb;--c1:#d97706;--c2:#059669;
--c3:#9333ea;--useful:#059669;--wasted:#dc2626;--loading:#d97706;--idle:#cbd5e1}
@media (prefers-color-scheme:dark){:root{--paper:#14171b;--ink:#e6e9ed;--dim:#98a2b0;--line:#2c333c;
--c0:#6ea8fe;--c1:#f5b04c;--c2:#4cc38a;--c3:#c794ff;--idle:#3b4552}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:72rem;padding:1rem;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(11rem,1fr));gap:.75rem;margin:0}
.figures div{border:1px solid var(--line);border-radius:.5rem;padding:.6rem .8rem}
.figures dt{color:var(--dim);font-size:.8rem}.figures dd{margin:0;font-size:1.2rem;font-weight:600}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1rem}
figure{margin:0}figcaption{font-size:.85rem;color:var(--dim)}figcaption b{color:var(--ink)}
svg{width:100%;height:auto}svg text{fill:var(--dim);font-size:11px}.grid{stroke:var(--line)}
.legend span{margin-right:1rem;font-size:.85rem}
.legend i{display:inline-block;width:.8rem;height:.8rem;border-radius:.2rem;margin-right:.3rem}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem}
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
td.number{text-align:right;font-variant-numeric:tabular-nums}
.strip{white-space:nowrap}.picture{display:inline-block;margin:.15rem;text-align:center;font-size:.7rem;color:var(--dim)}
.picture img{display:block;width:128px;height:32px;image-rendering:pixelated;border-radius:.2rem}
.bar{display:flex;height:1rem;min-width:14rem;border-radius:.25rem;overflow:hidden}
.bar span{display:block}.warning{color:var(--c1)}.error{color:var(--wasted)}
.empty{color:var(--dim)}
"""


def render_report(data: ReportData) -> str:
    """Return the HTML document."""
    charts = "".join(render_chart(chart) for chart in data.charts)
    body = "".join(
        [
            f"<h1>{escape(data.title)}</h1>",
            _figures(data.figures),
            f'<h2>Curves over iterations</h2><div class="charts">{charts}</div>',
            "<h2>Held-out words, same seeds before and after</h2>",
            _pictures(data.pictures),
            "<h2>Where the GPU-seconds went</h2>",
            _bars(data.agents),
            "<h2>Cost</h2>",
            _table(data.costs),
            "<h2>Time by phase</h2>",
            _table(data.phases),
            "<h2>What happened</h2>",
            _events(data.events),
        ]
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(data.title)}</title><style>{STYLE}</style></head>"
        f"<body>{body}</body></html>\n"
    )


def _figures(figures: Sequence[Figure]) -> str:
    cells = "".join(
        f"<div><dt>{escape(f.name)}</dt><dd>{escape(f.value)}</dd></div>" for f in figures
    )
    return f'<dl class="figures">{cells}</dl>'


def _table(rows: Sequence[Figure]) -> str:
    cells = "".join(
        f'<tr><td>{escape(row.name)}</td><td class="number">{escape(row.value)}</td></tr>'
        for row in rows
    )
    return f'<div class="scroll"><table>{cells}</table></div>'


def _pictures(rows: Sequence[PictureRow]) -> str:
    if not rows:
        return '<p class="empty">no images were kept</p>'
    cells = "".join(
        f'<tr><th>{escape(row.target)}</th><td class="strip">{_strip(row.before)}</td>'
        f'<td class="strip">{_strip(row.after)}</td></tr>'
        for row in rows
    )
    head = "<tr><th>word</th><th>before</th><th>after</th></tr>"
    return f'<div class="scroll"><table>{head}{cells}</table></div>'


def _strip(pictures: Iterable[Picture]) -> str:
    return "".join(
        f'<span class="picture"><img alt="drawn, read as {escape(picture.read)}" '
        f'src="data:image/png;base64,{base64.b64encode(picture.png).decode()}">'
        f"{picture.reward:.2f} {escape(picture.read)}</span>"
        for picture in pictures
    )


def _bars(agents: Sequence[AgentBar]) -> str:
    longest = max((sum(agent.seconds.values()) for agent in agents), default=0.0) or 1.0
    rows = "".join(_bar_row(agent, longest) for agent in agents)
    legend = "".join(
        f'<span><i style="background:var(--{name})"></i>{name}</span>' for name in CLASSES
    )
    head = "<tr><th>who</th><th></th>" + "".join(f"<th>{name} s</th>" for name in CLASSES)
    return (
        f'<div class="legend">{legend}</div><div class="scroll"><table>{head}<th>ended</th></tr>'
        f"{rows}</table></div>"
    )


def _bar_row(agent: AgentBar, longest: float) -> str:
    parts = "".join(
        f'<span style="width:{100 * agent.seconds.get(name, 0.0) / longest:.2f}%;'
        f'background:var(--{name})"></span>'
        for name in CLASSES
    )
    numbers = "".join(
        f'<td class="number">{agent.seconds.get(name, 0.0):.1f}</td>' for name in CLASSES
    )
    return (
        f'<tr><td>{escape(agent.name)}</td><td><div class="bar">{parts}</div></td>{numbers}'
        f"<td>{escape(agent.ended)}</td></tr>"
    )


def _events(events: Sequence[EventLine]) -> str:
    rows = "".join(
        f'<tr class="{escape(event.level)}"><td class="number">{event.at_s:.1f} s</td>'
        f"<td>{escape(event.text)}</td></tr>"
        for event in events
    )
    return f'<div class="scroll"><table>{rows}</table></div>'
