"""Tables and lines for people: rich on a terminal, aligned plain text elsewhere."""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spotlightd.control import api, views


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a heading."""
    if sys.stdout.isatty():
        _rich_table(columns, rows)
        return
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        print("  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip())


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        out.add_column(column, overflow="fold")
    for row in rows:
        out.add_row(*map(Text, row))
    Console().print(out)


def status_lines(status: api.Status) -> list[tuple[str, str]]:
    """Return (label, value) pairs that tell how the run is doing."""
    major, minor = status.protocol
    return [
        ("daemon", f"{status.version}, protocol {major}.{minor}, epoch {status.epoch}"),
        ("process", f"{status.pid}, up {duration(status.uptime_s)}"),
        ("state", status.state_dir),
        ("run", _run(status)),
        ("weights", f"version {status.policy_version}"),
        ("reward", _reward(status.reward)),
        ("agents", _counts(status.agents) or "none"),
        *((kind, _counts(states)) for kind, states in status.requests.items()),
        ("lost", str(status.lost)),
        ("gpu-seconds", _counts({k: round(v) for k, v in status.gpu_seconds.items()}) or "none"),
        ("cost", _cost(status.cost)),
        ("dashboard", status.dashboard or "off"),
    ]


def _run(status: api.Status) -> str:
    if status.run_state == "waiting":
        last = f" (the last was {status.run})" if status.run else ""
        return f"none: spotlightctl runs submit CONFIG begins one{last}"
    return f"{status.run}: {_phase(status)}, iteration {status.iteration}/{status.iterations}"


def _phase(status: api.Status) -> str:
    state = status.run_state
    return status.phase if state == "running" else f"{state} ({status.phase})"


def agent_row(row: api.AgentRow) -> list[str]:
    useful = row.gpu_seconds.get("useful", 0.0)
    held = sum(row.gpu_seconds.values())
    notice = "" if row.notice_s is None else f", notice {duration(row.notice_s)}"
    return [
        row.agent_id,
        row.name,
        row.state + notice,
        str(row.workers),
        str(row.leases),
        " ".join(map(str, row.versions)) or "-",
        f"{useful / held:.0%}" if held else "-",
        f"{duration(row.last_seen_s)} ago",
    ]


AGENT_COLUMNS = ("AGENT", "NAME", "STATE", "WORKERS", "LEASES", "VERSIONS", "USEFUL", "SEEN")


def run_row(row: api.RunRow) -> list[str]:
    return [
        row.name,
        row.state + (f": {row.failure}" if row.failure else ""),
        f"{row.iteration}/{row.iterations}",
        str(row.policy_version),
        _arrow(row.reward_first, row.reward_last),
        moment(row.started_at),
        moment(row.updated_at),
    ]


RUN_COLUMNS = ("RUN", "STATE", "ITERATION", "VERSION", "HELD-OUT", "STARTED", "UPDATED")


def submitted_line(answer: api.Submitted) -> str:
    verb = f"goes on with iteration {answer.iteration}" if answer.iteration else "begins"
    return f"run {answer.run} {verb}, kept in {answer.state_dir}"


def plan_lines(plan: api.PlanView) -> list[tuple[str, str]]:
    """Return (label, value) pairs: the plan in a sentence, and what it rests on."""
    beliefs = [
        (
            f"tail of {arm.tail_steps}",
            f"fidelity {arm.rho:.2f} ± {arm.rho_error:.2f} at staleness {arm.staleness}",
        )
        for arm in plan.arms
    ]
    windows = f"{plan.windows_kept} kept, {plan.windows_overrun} overrun"
    return [
        ("mode", plan.mode),
        ("plan", f"iteration {plan.iteration}: {plan.reason}"),
        ("windows", windows),
        *beliefs,
    ]


PLAN_COLUMNS = {
    "ITERATION": "",
    "SEEDS": "candidates",
    "STEPS": "steps",
    "RHO": "rho",
    "VARIANCE": "variance",
    "PREDICTED": "variance_predicted",
    "TRAINED": "trained",
    "GAIN": "gain",
    "NO SPREAD": "zero_spread_share",
    "MEAN SHIFT": "mean_shift",
    "GRAD NORM": "grad_norm_ratio",
    "OVERRAN": "overran",
}
"""Heading -> figure of an iteration."""


def plan_row(row: api.PlannedIteration) -> list[str]:
    figures = [row.figures.get(name) for name in list(PLAN_COLUMNS.values())[1:]]
    return [str(row.iteration), *("-" if f is None else f"{f:.3g}" for f in figures)]


WEIGHTS_COLUMNS = ("KIND", "VERSION", "BYTES", "CHUNKS", "HOLDERS", "DIGEST")


def weights_row(row: views.WeightsRow) -> list[str]:
    holders = str(len(row.holders)) if row.kind == "adapter" else "-"
    return [row.kind, str(row.version), str(row.bytes), str(row.chunks), holders, row.digest[:16]]


ACCOUNT_COLUMNS = ("AGENT", "NAME", "ROLE", "GPUS", "USEFUL", "WASTED", "LOADING", "IDLE", "COST")


def account_row(row: views.Account, currency: str) -> list[str]:
    classes = [f"{row.gpu_seconds[name]:.0f}s" for name in ("useful", "wasted", "loading", "idle")]
    cost = f"{row.cost:.4f} {currency} at {row.price_per_hour:g}/h"
    return [row.agent_id, row.name, row.role, str(row.workers), *classes, cost]


def ledger_line(ledger: views.LedgerView) -> str:
    return (
        f"{ledger.reserved + ledger.spot:.4f} {ledger.currency} spent ({ledger.reserved:.4f} "
        f"reserved, {ledger.spot:.4f} spot); all on demand it would be "
        f"{ledger.all_on_demand:.4f}: {ledger.saved_fraction:.0%} saved"
    )


SAMPLE_COLUMNS = ("ID", "KIND", "ITERATION", "VERSION", "PROMPT", "SEED", "STATE", "SCORES", "READ")


def sample_row(row: views.Sample) -> list[str]:
    scores = " ".join(f"{name} {value:.3f}" for name, value in (row.scores or {}).items())
    numbers = [str(row.iteration), str(row.policy_version)]
    return [row.request_id, row.kind, *numbers, row.target or row.prompt_id, row.seed,
            row.state, scores or "-", row.text or "-"]  # fmt: skip


def replay_line(found: Mapping[str, Any]) -> str:
    """Return what came of a replay, in a sentence."""
    if found["problem"]:
        return f"{found['request_id']} cannot be compared: {found['problem']}"
    verdict = "the same" if found["same"] else "NOT the same"
    return (
        f"{found['request_id']} is {verdict}: {found['compared']} differ by at most "
        f"{found['difference']:.2g} (tolerance {found['tolerance']:g})"
    )


def event_line(row: api.EventRow) -> str:
    return f"{moment(row.time)}  {row.level:<7}  {row.component:<8}  {row.text}"


def moment(seconds: float) -> str:
    """Return a time of day with its date, in the reader's time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def duration(seconds: float) -> str:
    """Return `45s`, `3m20s`, `2h05m` or `3d04h`."""
    whole = int(seconds)
    for unit, size, part, part_size in (("d", 86400, "h", 3600), ("h", 3600, "m", 60)):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // part_size:02d}{part}"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _reward(reward: api.Reward) -> str:
    control = "none yet" if reward.control_mean is None else f"{reward.control_mean:.3f}"
    points = [f"v{p.policy_version} {_scores(p.scores.items())}" for p in reward.held_out]
    return f"control {control}" + ("; held out " + ", ".join(points[-3:]) if points else "")


def _scores(scores: Iterable[tuple[str, float]]) -> str:
    return " ".join(f"{name} {value:.3f}" for name, value in scores)


def _cost(cost: api.Cost) -> str:
    return (
        f"{cost.reserved + cost.spot:.2f} {cost.currency} ({cost.reserved:.2f} reserved, "
        f"{cost.spot:.2f} spot); all reserved: {cost.all_reserved:.2f}"
    )


def _arrow(first: float | None, last: float | None) -> str:
    if first is None:
        return "-"
    return f"{first:.3f}" if last is None else f"{first:.3f} -> {last:.3f}"
