"""Line charts as inline SVG."""

from html import escape

from spotlightd.web.report_data import Chart, Curve

WIDTH, HEIGHT = 640, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 28
COLOURS = ("var(--c0)", "var(--c1)", "var(--c2)", "var(--c3)")


def render_chart(chart: Chart) -> str:
    """Return a figure with its caption and legend; an empty chart says that it is empty."""
    drawn = [curve for curve in chart.curves if curve.points]
    caption = f"<figcaption><b>{escape(chart.title)}.</b> {escape(chart.note)}</figcaption>"
    if not drawn:
        return f'<figure>{caption}<p class="empty">not measured in this run</p></figure>'
    scale = _Scale(drawn, chart.from_zero)
    curves = "".join(
        _curve(curve, COLOURS[number % len(COLOURS)], scale) for number, curve in enumerate(drawn)
    )
    legend = "".join(
        f'<span><i style="background:{COLOURS[n % len(COLOURS)]}"></i>{escape(c.name)}</span>'
        for n, c in enumerate(drawn)
    )
    return (
        f'<figure>{caption}<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(chart.title)}">{scale.axes()}{curves}</svg>'
        f'<div class="legend">{legend}</div></figure>'
    )


class _Scale:
    """Maps values to the drawing."""

    def __init__(self, curves: list[Curve], from_zero: bool) -> None:
        xs = [point.x for curve in curves for point in curve.points]
        ys = [point.y for curve in curves for point in curve.points]
        self.x_low, self.x_high = min(xs), max(max(xs), min(xs) + 1)
        low = min(0.0, *ys) if from_zero else min(ys)
        self.y_low, self.y_high = low, max(max(ys), low + 1e-9)

    def x(self, value: float) -> float:
        share = (value - self.x_low) / (self.x_high - self.x_low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.y_low) / (self.y_high - self.y_low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def axes(self) -> str:
        lines = []
        for quarter in range(5):
            value = self.y_low + quarter / 4 * (self.y_high - self.y_low)
            y = self.y(value)
            lines.append(
                f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
                f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.2g}</text>'
            )
            at = self.x_low + quarter / 4 * (self.x_high - self.x_low)
            lines.append(
                f'<text x="{self.x(at):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{at:.0f}</text>'
            )
        return "".join(lines)


def _curve(curve: Curve, colour: str, scale: _Scale) -> str:
    places = [(scale.x(point.x), scale.y(point.y)) for point in curve.points]
    if curve.dots or len(places) == 1:
        return "".join(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in places
        )
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
