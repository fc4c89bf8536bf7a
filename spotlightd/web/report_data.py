"""What the report shows: plain values, filled from the run's state by collect.py."""

import msgspec


class Point(msgspec.Struct, frozen=True):
    x: float
    """Iteration (equals the policy version)."""
    y: float


class Curve(msgspec.Struct, frozen=True):
    name: str
    points: tuple[Point, ...]
    dots: bool = False
    """Draw single measurements instead of a line."""


class Chart(msgspec.Struct, frozen=True):
    title: str
    note: str
    """One sentence on what the reader sees."""
    curves: tuple[Curve, ...]
    from_zero: bool = True


class Picture(msgspec.Struct, frozen=True):
    png: bytes
    reward: float
    read: str
    """What the recogniser read."""


class PictureRow(msgspec.Struct, frozen=True):
    """One held-out prompt: the same seeds before and after."""

    target: str
    before: tuple[Picture, ...]
    after: tuple[Picture, ...]


class AgentBar(msgspec.Struct, frozen=True):
    name: str
    ended: str
    seconds: dict[str, float]
    """GPU-seconds by class: useful, wasted, loading, idle."""


class EventLine(msgspec.Struct, frozen=True):
    at_s: float
    """Seconds since the run's first event."""
    level: str
    text: str


class Figure(msgspec.Struct, frozen=True):
    name: str
    value: str


class ReportData(msgspec.Struct, frozen=True):
    title: str
    figures: tuple[Figure, ...]
    """Headline numbers."""
    charts: tuple[Chart, ...]
    pictures: tuple[PictureRow, ...]
    agents: tuple[AgentBar, ...]
    events: tuple[EventLine, ...]
    costs: tuple[Figure, ...]
    phases: tuple[Figure, ...]
