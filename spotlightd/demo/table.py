"""The table that the demo ends with."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def print_table(console: Console, summary: dict[str, Any], out: Path) -> None:
    reward, trajectories = summary["reward"], summary["trajectories"]
    table = Table(title="What came of it", show_header=False)
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in (
        ("held-out OCR reward", f"{reward['before']:.3f} → {reward['after']:.3f}"),
        ("held-out CTC score", f"{reward['ctc_before']:.3f} → {reward['ctc_after']:.3f}"),
        ("background grain", f"× {reward['grain_ratio']:.2f}"),
        ("iterations", str(summary["iterations"])),
        ("explored / rolled out / evaluated", _counts(trajectories)),
        ("resumed on another worker", str(trajectories["resumed"])),
        ("lost", str(trajectories["lost"])),
        ("rank correlation, stale against fresh", _rho(summary["staleness"])),
        ("log-prob difference / clip range", _ratio(summary["log_prob"])),
        ("cost against all reserved", _cost(summary["cost"])),
        ("time", f"{summary['seconds']:.0f} s"),
    ):
        table.add_row(name, value)
    console.print(table)
    console.print(_agents(summary))
    console.print(_phases(summary))
    console.print(f"report: {out / 'report.html'}\nsummary: {out / 'summary.json'}")


def _counts(trajectories: dict[str, int]) -> str:
    return " / ".join(str(trajectories[kind]) for kind in ("explore", "rollout", "evaluate"))


def _rho(staleness: dict[str, Any]) -> str:
    if staleness["spearman"] is None:
        return "not explored"
    return f"{staleness['spearman']:.2f} (edit), {staleness['spearman_ctc']:.2f} (CTC)"


def _ratio(log_prob: dict[str, Any]) -> str:
    if log_prob["mean_abs_difference"] is None:
        return "not measured"
    return f"{log_prob['mean_abs_difference']:.1e} / {log_prob['clip_range']:.0e}"


def _cost(cost: dict[str, Any]) -> str:
    return (
        f"{cost['spent']:.3f} / {cost['all_reserved']:.3f} {cost['currency']} "
        f"({cost['saved_fraction']:.0%} saved)"
    )


def _agents(summary: dict[str, Any]) -> Table:
    table = Table(title="GPU-seconds")
    for column in ("who", "useful", "wasted", "loading", "idle", "ended"):
        table.add_column(column, justify="left" if column in ("who", "ended") else "right")
    for agent in summary["agents"]:
        seconds = agent["gpu_seconds"]
        figures = [f"{seconds[name]:.1f}" for name in ("useful", "wasted", "loading", "idle")]
        table.add_row(agent["name"], *figures, agent["ended"])
    return table


def _phases(summary: dict[str, Any]) -> Table:
    table = Table(title="Time by phase")
    for column in ("phase", "times", "mean s", "total s"):
        table.add_column(column, justify="left" if column == "phase" else "right")
    for phase, row in summary["phases"].items():
        table.add_row(phase, str(row["times"]), f"{row['mean']:.2f}", f"{row['seconds']:.1f}")
    return table
