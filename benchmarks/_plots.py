"""Two kinds of pictures as SVG files: rows of dots on a scale, and stacked bars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT, TOP, ROW = 760, 250, 20, 46, 24
COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#94a3b8")
STYLE = (
    "<style>text{font:12px system-ui,sans-serif;fill:#57606a}.title{font-weight:600;fill:#1b1f24}"
    ".axis{stroke:#d0d7de}@media(prefers-color-scheme:dark){text{fill:#98a2b0}"
    ".title{fill:#e6e9ed}.axis{stroke:#3b4552}}</style>"
)


@dataclass(frozen=True)
class Row:
    label: str
    dots: Mapping[str, Sequence[float]]
    """Values by the name of what they belong to."""


def render_dots(
    title: str, rows: Sequence[Row], aim: tuple[float, float] | None = None, said: str = ""
) -> str:
    """Return rows of dots.

    Args:
        aim: band to be shaded; two equal values are a line.
        said: what the band is.
    """
    names = list(dict.fromkeys(name for row in rows for name in row.dots))
    values = [v for row in rows for dots in row.dots.values() for v in dots]
    most = 1.08 * max([*values, *(aim or ())])
    height = TOP + ROW * len(rows) + 30

    def x(value: float) -> float:
        return LEFT + value / most * (WIDTH - LEFT - RIGHT)

    parts = []
    if aim is not None:
        wide = max(x(aim[1]) - x(aim[0]), 2)
        parts.append(
            f'<rect x="{x(aim[0]):.1f}" y="{TOP - 8}" width="{wide:.1f}" '
            f'height="{ROW * len(rows) + 8}" fill="{COLOURS[2]}" opacity="0.25"/>'
        )
    for tick in _ticks(most):
        parts.append(
            f'<line class="axis" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP - 8}" '
            f'y2="{height - 28}"/><text x="{x(tick):.1f}" y="{height - 12}" '
            f'text-anchor="middle">{tick:g}</text>'
        )
    for number, row in enumerate(rows):
        y = TOP + ROW * number + ROW / 2 - 4
        parts.append(_label(row.label, y))
        for name, dots in row.dots.items():
            colour = COLOURS[names.index(name)]
            parts += [
                f'<circle cx="{x(dot):.1f}" cy="{y:.1f}" r="4" fill="{colour}" opacity="0.8"/>'
                for dot in dots
            ]
    legend = [(name, COLOURS[n]) for n, name in enumerate(names)]
    if aim is not None:
        legend.append((said, COLOURS[2]))
    return _document(title, height, legend, parts)


def render_bars(title: str, rows: Mapping[str, Mapping[str, float]]) -> str:
    """Return one bar per row, of shares that add up to 1."""
    names = list(dict.fromkeys(name for shares in rows.values() for name in shares))
    parts = []
    for number, (label, shares) in enumerate(rows.items()):
        y, at = TOP + ROW * number, float(LEFT)
        parts.append(_label(label, y + ROW / 2 - 4))
        for name, share in shares.items():
            wide = share * (WIDTH - LEFT - RIGHT)
            colour = COLOURS[names.index(name)]
            parts.append(
                f'<rect x="{at:.1f}" y="{y - 2}" width="{wide:.1f}" height="{ROW - 6}" '
                f'fill="{colour}"><title>{escape(name)} {share:.1%}</title></rect>'
            )
            at += wide
    legend = [(name, COLOURS[n]) for n, name in enumerate(names)]
    return _document(title, TOP + ROW * len(rows) + 12, legend, parts)


def _ticks(most: float) -> list[float]:
    step = next(s for s in (0.25, 0.5, 1, 2, 5, 10, 20, 50) if most / s <= 10 or s == 50)
    return [step * n for n in range(int(most / step) + 1)]


def _label(text: str, y: float) -> str:
    return f'<text x="{LEFT - 10}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'


def _document(
    title: str, height: float, legend: Sequence[tuple[str, str]], parts: Sequence[str]
) -> str:
    keys, at = [], float(LEFT)
    for name, colour in legend:
        keys.append(
            f'<rect x="{at:.0f}" y="22" width="10" height="10" fill="{colour}"/>'
            f'<text x="{at + 14:.0f}" y="31">{escape(name)}</text>'
        )
        at += 30 + 7 * len(name)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(title)}">{STYLE}'
        f'<text class="title" x="4" y="14">{escape(title)}</text>{"".join(keys)}{"".join(parts)}'
        "</svg>\n"
    )
