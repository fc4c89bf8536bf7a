"""What each GPU of a race did, run by run, as one SVG file."""

from collections.abc import Sequence
from html import escape

from _race_figures import Record, crossing

from spotlightd.telemetry.usage import PERIOD_S

WIDTH, LEFT, RIGHT = 960, 84, 16
ROW, GAP, TITLE, PHASES = 20, 4, 22, 8
COLOURS = {"useful": "#059669", "wasted": "#dc2626", "loading": "#d97706", "idle": "#cbd5e1"}
"""By class of the ledger; the report has the same."""
PHASE_COLOURS = {"rollout": "#2563eb", "explore": "#9333ea", "train": "#1b1f24", "evaluate": "#9aa"}
LOSS, REACHED = "#dc2626", "#1b1f24"
TICK_S = 30


def draw(records: Sequence[Record]) -> str:
    """Return the picture: each run has its phases, a row for each GPU, losses, and its target.

    A column is one measurement of the ledger, `PERIOD_S` long, and as high as the share of that
    time for which the VM was there.
    """
    longest = max(_end(record) - record["started"] for record in records)
    scale = (WIDTH - LEFT - RIGHT) / longest
    parts, top = [_legend()], 34.0
    for record in records:
        drawn, height = _run(record, top, scale)
        parts.append(drawn)
        top += height
    parts.append(_axis(top, longest, scale))
    height = int(top + 24)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'font-family="system-ui,sans-serif" font-size="11" fill="#1b1f24">'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _end(record: Record) -> float:
    return float(max(began + seconds for _, _, began, seconds in record["phases"]))


def _rows(record: Record) -> list[str]:
    names = {cell["row"] for cell in record["cells"]}
    return sorted(names, key=lambda name: (name != "reserved", name))


def _run(record: Record, top: float, scale: float) -> tuple[str, float]:
    began, settings = record["started"], record["settings"]
    end = crossing(record["points"], settings["target"])
    said = f"reached after {end.iterations:.1f} iterations" if end.reached else "not reached"
    title = f"{record['variant']}, seed {record['seed']}: {settings['target']:g} {said}"
    parts = [f'<text x="4" y="{top + 14:.0f}" font-weight="600">{escape(title)}</text>']
    y = top + TITLE
    for _, phase, at, seconds in record["phases"]:
        x = LEFT + (at - began) * scale
        parts.append(_box(x, y, seconds * scale, PHASES, PHASE_COLOURS.get(phase, "#fff")))
    parts.append(f'<text x="4" y="{y + PHASES:.0f}">phases</text>')
    y += PHASES + GAP
    rows = {}
    for name in _rows(record):
        rows[name] = y
        parts.append(f'<text x="4" y="{y + 14:.0f}">{escape(name)}</text>')
        parts += [_cell(c, began, y, scale) for c in record["cells"] if c["row"] == name]
        y += ROW + GAP
    for at, seat, how in record["losses"]:
        if (row := rows.get(f"spot {seat + 1}")) is not None:
            x = LEFT + (at - began) * scale
            dash = "" if how == "silent" else ' stroke-dasharray="3 2"'
            parts.append(_line(x, row - 2, row + ROW + 2, LOSS, dash))
    if end.reached:
        x = LEFT + (end.at - began) * scale
        parts.append(_line(x, top + TITLE, y, REACHED, ""))
    return "".join(parts), y - top + GAP


def _cell(cell: Record, began: float, y: float, scale: float) -> str:
    """Stack the classes of one column, useful at the bottom."""
    x = LEFT + max(cell["at"] - began, 0.0) * scale
    bottom, parts = y + ROW, []
    for name, colour in COLOURS.items():
        height = cell[name] * ROW
        bottom -= height
        width = min(PERIOD_S * scale, WIDTH - RIGHT - x)
        parts.append(_box(x, bottom, width, height, colour))
    return "".join(parts)


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    if height < 0.05 or width <= 0:
        return ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'
    )


def _line(x: float, top: float, bottom: float, colour: str, dash: str) -> str:
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}" stroke="{colour}" '
        f'stroke-width="2"{dash}/>'
    )


def _legend() -> str:
    parts, x = [], 4
    for name, colour in {**COLOURS, **PHASE_COLOURS}.items():
        parts.append(f'<rect x="{x}" y="8" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="17">{name}</text>')
        x += 24 + 7 * len(name)
    words = "red line: a VM is taken away (dashed: with a notice); black line: target"
    return "".join(parts) + f'<text x="{x}" y="17">{words}</text>'


def _axis(y: float, longest: float, scale: float) -> str:
    ticks = range(0, int(longest) + 1, TICK_S)
    return "".join(
        f'<text x="{LEFT + tick * scale:.0f}" y="{y + 14:.0f}" text-anchor="middle">{tick} s</text>'
        for tick in ticks
    )
