"""From the store to trackers: what is new since the last look, and how far each look came."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from spotlightd.atomic import write_file
from spotlightd.errors import InputError
from spotlightd.logs import redact
from spotlightd.store.blobs import Blobs
from spotlightd.store.history import History
from spotlightd.telemetry.trackers import Tracker

BATCH = 2000
"""Figures in one look."""
PICTURES = 8
"""Held-out pictures of an evaluation."""


class Cursor(msgspec.Struct):
    """How far the trackers have been fed; kept in the state directory."""

    metric: int = 0
    """Row id of the last figure."""
    evaluated: int = -1
    """Last version whose pictures were shown."""


class Feed:
    """Feeds trackers from a state directory, which it only reads.

    A figure may be shown twice when the process ends between showing and remembering: trackers
    take the later of two values of a step.
    """

    def __init__(self, state_dir: Path, cursor_file: Path, train: str) -> None:
        self._history = History(state_dir)
        self._blobs = Blobs(state_dir / "blobs")
        self._file = cursor_file
        self._train = train
        self.cursor = _read(cursor_file)

    def close(self) -> None:
        self._history.close()

    def feed(self, trackers: Sequence[Tracker]) -> int:
        """Show what is new; return how many figures that was."""
        shown = 0
        while rows := self._history.read(
            "SELECT rowid, iteration, name, value FROM metric WHERE rowid > ? ORDER BY rowid "
            "LIMIT ?",
            (self.cursor.metric, BATCH),
        ):
            by_iteration: dict[int, dict[str, float]] = {}
            for _, iteration, name, value in rows:
                by_iteration.setdefault(int(str(iteration)), {})[str(name)] = float(str(value))
            for iteration, values in by_iteration.items():
                for tracker in trackers:
                    tracker.scalars(iteration, values)
            self.cursor.metric = int(str(rows[-1][0]))
            shown += len(rows)
        self._pictures(trackers)
        if shown:
            for tracker in trackers:
                tracker.flush()
            write_file(self._file, msgspec.json.encode(self.cursor))
        return shown

    def _pictures(self, trackers: Sequence[Tracker]) -> None:
        for version in self._history.iterations_with(f"held_out.{self._train}"):
            if version <= self.cursor.evaluated:
                continue
            rows = [row for row in self._history.evaluated(version) if row.image]
            for number, row in enumerate(rows[:PICTURES]):
                try:
                    png = self._blobs.get(row.image)
                except InputError:
                    # A damaged picture is a gap among the others.
                    continue
                name = f"held_out/{number} {redact(row.request.target)}"[:100]
                for tracker in trackers:
                    tracker.image(version, name, png)
            self.cursor.evaluated = version


def _read(path: Path) -> Cursor:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Cursor)
    except (OSError, msgspec.DecodeError):
        # Without it everything is shown again, which changes nothing.
        return Cursor()
