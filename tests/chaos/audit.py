"""What must hold when the dust has settled, read from the state directory of an ended daemon."""

import re
import sqlite3
import statistics
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import torch

from spotlightd.config import Config
from spotlightd.dit.lora import attach_lora
from spotlightd.dit.models import load_model
from spotlightd.fleet.ledger import Account, Ledger
from spotlightd.models import resolve_model_dir
from spotlightd.replay import replay
from spotlightd.store.store import Store
from spotlightd.wire.sampling import Request
from tests.chaos.vms import Vm

TOLERANCE = 1e-5
WORST = 8
"""Accounts that a problem with the ledger names."""
HELD_SHARE = 0.05
"""Of the time lived: the last half second before a death is not seen."""
SLACK_S = 1.5
"""An agent is billed from its Hello to its last sign of life, and never beyond its death."""
COMMIT_COST = re.compile(r"a step commit costs ([0-9.]+) % of a step, one every (\d+)")


@dataclass
class Audit:
    """Figures and what is wrong with them."""

    figures: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def check(self, holds: bool, problem: str) -> None:
        if not holds:
            self.problems.append(problem)


def read(state: Path, sql: str) -> list[tuple[Any, ...]]:
    """Ask the database as it lies there."""
    with closing(sqlite3.connect(f"file:{state / 'spotlight.db'}?mode=ro", uri=True)) as database:
        return database.execute(sql).fetchall()


def audit_store(store: Store, audit: Audit) -> None:
    """Every settled request has its one result; the database is sound."""
    ((sound,),) = read(store.state_dir, "PRAGMA integrity_check")
    audit.check(sound == "ok", f"the database is damaged: {sound}")
    lost = store.count_lost()
    audit.check(lost == 0, f"{lost} requests are done without a result")
    ((twice,),) = read(
        store.state_dir,
        "SELECT COUNT(*) FROM (SELECT 1 FROM result GROUP BY request_id HAVING COUNT(*) > 1)",
    )
    audit.check(twice == 0, f"{twice} requests have two results")
    ((open_results,),) = read(
        store.state_dir,
        "SELECT COUNT(*) FROM result JOIN request USING (request_id) WHERE state != 'done'",
    )
    audit.check(open_results == 0, f"{open_results} results belong to requests that are not done")
    results = store.results()
    audit.figures["trajectories_lost"] = lost
    audit.figures["trajectories_committed_twice"] = twice
    audit.figures["results"] = len(results)
    audit.figures["results_of_resumed_trajectories"] = sum(r.resumed_from > 0 for r in results)


def audit_ledger(
    store: Store, vms: list[Vm], daemon_away: list[tuple[float, float]], audit: Audit
) -> None:
    """Classes sum to the time held, and nobody is billed for more than it lived, nor for less than
    it could be heard.
    """
    accounts = {
        agent_id: msgspec.json.decode(body, type=Account)
        for agent_id, body in store.accounts().items()
    }
    Ledger(accounts).validate(now=0.0)
    by_name = {account.name: account for account in accounts.values() if account.role == "agent"}
    held = lived = 0.0
    off: list[tuple[float, str]] = []
    for vm in vms:
        account = by_name.get(vm.name)
        if account is None or vm.ended is None:
            continue
        own = account.held(now=0.0)
        first_heard = account.joined_at - (account.held_before / max(account.workers, 1))
        until = min(vm.heard_until(daemon_away), leaving_time(vm.log) or vm.ended)
        heard = max(until - max(first_heard, vm.began), 0.0)
        held, lived = held + own, lived + heard
        off.append((abs(own - heard), f"{vm.name} {heard:.1f} and {own:.1f} s"))
        audit.check(
            own <= vm.ended - vm.began + SLACK_S,
            f"{vm.name} lived {vm.ended - vm.began:.1f} s and is billed for {own:.1f} s",
        )
    audit.figures["agent_seconds_billed"] = held
    audit.figures["agent_seconds_heard"] = lived
    audit.check(
        abs(held - lived) <= HELD_SHARE * max(lived, 1.0),
        f"agents lived {lived:.0f} s since their Hello and are billed for {held:.0f} s; furthest "
        f"off: {', '.join(text for _, text in sorted(off)[: -WORST - 1 : -1])}",
    )


def leaving_time(log: Path) -> float | None:
    """Return when an agent said goodbye; what its processes take to end is not billed."""
    found = re.search(r"(?m)^(\S+) INFO +main +leaving: ", log.read_text())
    return datetime.fromisoformat(found[1]).timestamp() if found else None


def audit_trajectories(
    store: Store,
    config: Config,
    damaged: set[str],
    audit: Audit,
    progress: Callable[[int], None],
) -> None:
    """Every committed rollout is produced again from its request, and is the same."""
    # A second thread would only wait for the first, where others compute too.
    torch.set_num_threads(1)
    model = load_model(resolve_model_dir(config.run.model), torch.float32, "cpu")
    attach_lora(model, config.trainer.lora_rank, config.trainer.lora_alpha)
    trajectories = {r.request_id: r.trajectory for r in store.results() if r.trajectory}
    rows: list[tuple[Request, str]] = []
    for (body,) in read(store.state_dir, "SELECT body FROM request WHERE kind = 'rollout'"):
        request = msgspec.msgpack.decode(body, type=Request)
        digest = trajectories.get(request.request_id)
        if digest is not None:
            rows.append((request, digest))
    state = Path(config.store.state_dir)
    compared = replay(model, state / "weights", store.blobs, rows, progress)
    digests = {request.request_id: digest for request, digest in rows}
    for one in compared:
        if one.problem and digests[one.request_id] in damaged:
            continue
        audit.check(not one.problem, f"{one.request_id}: {one.problem}")
        audit.check(
            one.difference <= TOLERANCE or bool(one.problem),
            f"{one.request_id}: replayed latents differ by {one.difference:.2g}",
        )
    differences = [one.difference for one in compared if not one.problem]
    audit.check(bool(differences), "no trajectory was committed: nothing was tested")
    audit.figures["trajectories_replayed"] = len(differences)
    audit.figures["largest_difference"] = max(differences, default=0.0)


def commit_cost(logs: list[Path]) -> dict[str, float]:
    """Return what agents have measured of their step commits."""
    found = [match for log in logs for match in COMMIT_COST.findall(log.read_text())]
    if not found:
        return {}
    return {
        "step_commit_percent_of_step": statistics.median(float(share) for share, _ in found),
        "steps_between_commits": statistics.median(int(every) for _, every in found),
    }
