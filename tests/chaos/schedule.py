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

FLEET = 3
"""Agents that are there when nothing strikes."""
BURSTS = (1, 2, FLEET, FLEET, FLEET, FLEET)
"""VMs that die together. In public traces 88 to 97 % of losses come four or more at once; here
it is the whole fleet.
"""
STORM_S, CALM_S = 30.0, 47.0
"""What ends processes comes in storms. In the calm between them trainer and workers, which take
many seconds to load on a busy machine, produce something for the next storm to destroy.
"""
FREEZE_S = (3.0, 14.0)
"""From shorter than `suspect_s` to longer than a lease."""
PARTITION_S = (0.5, 9.0)
DISK_FULL_S = (2.0, 5.0)
QUIET_S = 40.0
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

    seconds: float = 420.0
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
    """Return all faults in order of time. Deaths come in storms, agents' in bursts; every storm has
    its share of the daemon's. Networks, disks and notices fail at any time.
    """
    rng = random.Random(seed)
    faults: list[Fault] = []
    number_of_storms = max(round((plan.seconds - QUIET_S) / (STORM_S + CALM_S)), 1)
    period = (plan.seconds - QUIET_S) / number_of_storms

    def when() -> float:
        return rng.uniform(QUIET_S, plan.seconds)

    def in_storm(number: int) -> float:
        """Return a moment in one storm; every storm is as likely."""
        begins = QUIET_S + period * (number % number_of_storms)
        return begins + rng.uniform(0, period * STORM_S / (STORM_S + CALM_S))

    left = plan.agent_deaths
    while left > 0:
        count = min(rng.choice(BURSTS), left)
        at = in_storm(rng.randrange(number_of_storms))
        faults.append(Fault(at, "kill_agents", count, rng.random()))
        left -= count
    kills: list[Kind] = ["kill_daemon"] * (plan.daemon_kills - plan.truncated_wals)
    kills += ["truncate_wal"] * plan.truncated_wals
    rng.shuffle(kills)
    kills += ["kill_trainer"] * plan.trainer_kills
    faults += [Fault(in_storm(n), kind, draw=rng.random()) for n, kind in enumerate(kills)]
    for _ in range(plan.partitions):
        seconds = rng.uniform(*PARTITION_S)
        faults.append(Fault(when(), "partition", rng.randint(1, FLEET), rng.random(), seconds))
    for _ in range(plan.freezes):
        faults.append(Fault(when(), "freeze", 1, rng.random(), rng.uniform(*FREEZE_S)))
    for _ in range(plan.full_disks):
        faults.append(Fault(when(), "fill_disk", seconds=rng.uniform(*DISK_FULL_S)))
    single: list[tuple[Kind, int]] = [
        ("notice", plan.notices),
        ("kill_worker", plan.worker_kills),
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
