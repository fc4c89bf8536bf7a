"""Which fault strikes when: a pure function of the seed, so that a schedule can be repeated."""

import random
from collections import Counter
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "kill_agents",
    "kill_worker",
    "kill_trainer",
    "kill_daemon",
    "partition",
    "freeze",
    "notice",
    "fill_disk",
    "damage_blob",
    "truncate_wal",
]

BURSTS = (1, 1, 2, 3, 4, 4)
"""VMs that die together. In public traces 88 to 97 % of losses come four or more at once; a fleet
of four cannot show more.
"""
FREEZE_S = (3.0, 14.0)
"""From shorter than `suspect_s` to longer than a lease."""
PARTITION_S = (0.5, 9.0)
DISK_FULL_S = (2.0, 5.0)
QUIET_S = 20.0
"""Without faults at the beginning, so that there is something to break."""


@dataclass(frozen=True)
class Fault:
    at_s: float
    """Seconds since the run began."""
    kind: Kind
    count: int = 1
    """How many agents it strikes."""
    draw: float = 0.0
    """In [0, 1): which of those that are there."""
    seconds: float = 0.0
    """How long it lasts."""


@dataclass(frozen=True)
class Plan:
    """How much is to happen."""

    seconds: float = 480.0
    agent_deaths: int = 60
    daemon_kills: int = 20
    partitions: int = 20
    freezes: int = 8
    notices: int = 8
    worker_kills: int = 6
    trainer_kills: int = 4
    full_disks: int = 3
    damaged_blobs: int = 4
    truncated_wals: int = 2


def make_schedule(seed: int, plan: Plan) -> list[Fault]:
    """Return all faults in order of time. Deaths come in bursts; kills of the daemon are spread, so
    that each strikes a daemon that works.
    """
    rng = random.Random(seed)
    faults: list[Fault] = []

    def when() -> float:
        return rng.uniform(QUIET_S, plan.seconds)

    left = plan.agent_deaths
    while left > 0:
        count = min(rng.choice(BURSTS), left)
        faults.append(Fault(when(), "kill_agents", count, rng.random()))
        left -= count
    kills: list[Kind] = ["kill_daemon"] * (plan.daemon_kills - plan.truncated_wals)
    kills += ["truncate_wal"] * plan.truncated_wals
    rng.shuffle(kills)
    share = (plan.seconds - QUIET_S) / max(len(kills), 1)
    for number, kind in enumerate(kills):
        at = QUIET_S + share * (number + rng.uniform(0.1, 0.9))
        faults.append(Fault(at, kind, draw=rng.random()))
    for _ in range(plan.partitions):
        seconds = rng.uniform(*PARTITION_S)
        faults.append(Fault(when(), "partition", rng.randint(1, 4), rng.random(), seconds))
    for _ in range(plan.freezes):
        faults.append(Fault(when(), "freeze", 1, rng.random(), rng.uniform(*FREEZE_S)))
    for _ in range(plan.full_disks):
        faults.append(Fault(when(), "fill_disk", seconds=rng.uniform(*DISK_FULL_S)))
    single: list[tuple[Kind, int]] = [
        ("notice", plan.notices),
        ("kill_worker", plan.worker_kills),
        ("kill_trainer", plan.trainer_kills),
        ("damage_blob", plan.damaged_blobs),
    ]
    for kind, number in single:
        faults += [Fault(when(), kind, draw=rng.random()) for _ in range(number)]
    return sorted(faults, key=lambda fault: fault.at_s)


def count_deaths(faults: list[Fault]) -> Counter[str]:
    """Return how often each kind strikes; agents are counted one by one."""
    counts: Counter[str] = Counter()
    for fault in faults:
        counts[fault.kind] += fault.count if fault.kind == "kill_agents" else 1
    return counts
