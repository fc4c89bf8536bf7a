"""The report: whole, safe and self-contained."""

import re
from html.parser import HTMLParser

from spotlightd.web.chart import render_chart
from spotlightd.web.report import render_report
from spotlightd.web.report_data import (
    AgentBar,
    Chart,
    Curve,
    EventLine,
    Figure,
    Picture,
    PictureRow,
    Point,
    ReportData,
)

HOSTILE = "<script>alert('x')</script>\"&"


def data(text: str) -> ReportData:
    curve = Curve(text, (Point(0, 0.5), Point(1, 0.75)))
    return ReportData(
        title=text,
        figures=(Figure(text, text),),
        charts=(Chart(text, text, (curve, Curve("dots", (Point(0, 1),), dots=True))),),
        pictures=(PictureRow(text, (Picture(b"png", 0.5, text),), ()),),
        agents=(AgentBar(text, text, {"useful": 1.0, "idle": 3.0}),),
        events=(EventLine(1.0, "warning", text),),
        costs=(Figure(text, text),),
        phases=(Figure(text, text),),
    )


class Balanced(HTMLParser):
    """Checks that every opened element is closed in order."""

    VOID = frozenset({"meta", "img", "line", "circle", "polyline"})

    def __init__(self):
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_hostile_text_stays_text():
    html = render_report(data(HOSTILE))
    assert "<script" not in html
    assert html.count("&lt;script&gt;") > 8


def test_the_document_is_balanced_and_asks_no_host():
    html = render_report(data("plain"))
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    assert not re.search(r"(src|href)=\"(?!data:)", html)
    assert "url(" not in html and "@import" not in html


def test_bars_have_the_share_of_the_longest():
    html = render_report(data("plain"))
    assert 'style="width:25.00%;background:var(--useful)"' in html


def test_an_unmeasured_chart_says_so():
    assert "not measured" in render_chart(Chart("t", "n", (Curve("c", ()),)))


def test_points_lie_inside_the_drawing():
    svg = render_chart(Chart("t", "n", (Curve("c", (Point(0, -1), Point(5, 3), Point(9, 2))),)))
    (points,) = re.findall(r'polyline points="([^"]+)"', svg)
    for pair in points.split():
        x, y = map(float, pair.split(","))
        assert 0 <= x <= 640 and 0 <= y <= 240
