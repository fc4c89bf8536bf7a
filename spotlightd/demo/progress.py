"""Live progress of the demo: a rich display on a terminal, plain lines elsewhere."""

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from spotlightd.control.api import AgentRow, EventRow, Status


class ProgressView:
    """Shows what the control socket says. Use as a context manager."""

    def __init__(self, console: Console, iterations: int) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._progress.add_task("starting", total=iterations)
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
        self._said = ""

    def __enter__(self) -> "ProgressView":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, status: Status, agents: Sequence[AgentRow]) -> None:
        described = describe(status)
        if self._live:
            self._progress.update(self._task, completed=status.iteration, description=described)
            self._live.update(Group(self._progress, agent_table(agents)))
        elif (key := f"{status.phase} {status.iteration}") != self._said:
            self._said = key
            if status.phase != "train":
                self._console.print(described, highlight=False)

    def say(self, text: str) -> None:
        """Print a line above the display."""
        self._console.print(text, highlight=False)

    def events(self, rows: Sequence[EventRow]) -> None:
        """Print what happened to the fleet."""
        for row in rows:
            if row.component == "fleet" and row.level != "error":
                self.say(f"  · {row.text}")
            elif row.level == "error":
                self._console.print(Text(f"  ! {row.component}: {row.text}", style="red"))


def describe(status: Status) -> str:
    """Return one line on where the run stands."""
    reward = status.reward
    control = "" if reward.control_mean is None else f", reward {reward.control_mean:.3f}"
    held_out = f", held-out {reward.held_out[-1].scores['ocr']:.3f}" if reward.held_out else ""
    return f"iteration {status.iteration}/{status.iterations} {status.phase}{control}{held_out}"


def agent_table(agents: Sequence[AgentRow]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("agent", "state", "leases", "useful s", "idle s"):
        table.add_column(column, justify="right" if column not in ("agent", "state") else "left")
    for row in agents:
        seconds = row.gpu_seconds
        table.add_row(
            row.name,
            row.state,
            str(row.leases),
            f"{seconds.get('useful', 0):.0f}",
            f"{seconds.get('idle', 0):.0f}",
        )
    return table
