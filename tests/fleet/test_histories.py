"""Seeded histories of one simulated hour: agents come, die in bursts, freeze, drain, report late.

The state machines are the daemon's own; only workers, their clocks and the store's answer are
played. `HISTORIES=2000 python -m pytest tests/fleet/test_histories.py` runs as many.
"""

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from spotlightd.fleet.ledger import Ledger
from spotlightd.fleet.membership import Member, Membership
from spotlightd.fleet.moment import SpotView
from spotlightd.fleet.scheduler import Scheduler
from spotlightd.wire.messages import HeldLease
from spotlightd.wire.sampling import Request, SamplerSettings

COUNT = int(os.environ.get("HISTORIES", "20"))
HOUR, STEP = 3600.0, 4.0
STEPS_PER_TRAJECTORY = 6
CAPACITY = 4
TRACE = Path(__file__).parents[3] / "shared/traces/bamboo/p3-trace.csv"
SAMPLER = SamplerSettings((1.0, 0.5, 0.0), "flow_cps", 0.7, (0,), 1.0, 32, 128)


def burst_times(rng: random.Random) -> list[tuple[float, int]]:
    """Return (time, number of VMs added, or lost if negative): from a real trace, or made up."""
    if TRACE.exists():
        rows = [line.split(",") for line in TRACE.read_text().splitlines() if line.strip()]
        events = [(float(ms) / 1000, 1 if kind == "add" else -1) for ms, kind, _ in rows]
        start = rng.uniform(0, max(events[-1][0] - HOUR, 0.0))
        return [(at - start, n) for at, n in events if start <= at < start + HOUR]
    return sorted((rng.uniform(0, HOUR), rng.choice([1, 2, 4, -1, -4, -8])) for _ in range(40))


@dataclass
class Vm:
    agent_id: str
    pace: int = 1
    """Turns that one denoising step takes."""
    held: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Request -> (fence, steps done)."""
    frozen_until: float = 0.0
    stuck_until: float = 0.0
    """The worker hangs while its agent goes on beating: leases expire under it."""
    busy_s: float = 0.0


class History:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.scheduler = Scheduler(epoch=1, lease_s=40.0, attempts=50)
        self.members = Membership(suspect_s=6, lost_s=15, forget_s=600)
        self.ledger = Ledger()
        self.stored: dict[str, str] = {}
        """Accounts on the disk."""
        self.spots = SpotView(self.scheduler, self.members)
        self.vms: dict[str, Vm] = {}
        self.commits: dict[str, int] = {}
        self.stale = self.resumed = self.deaths = self.made = self.backups = 0
        self.asked = self.given_up = 0
        self.now = 0.0

    def run(self) -> None:
        bursts = burst_times(self.rng)
        while self.now < HOUR:
            while bursts and bursts[0][0] <= self.now:
                self.change_fleet(bursts.pop(0)[1])
            self.turn()
            self.now += STEP
        # The fleet comes back, and everything that was asked for is done.
        for _ in range(6):
            self.add_vm()
        while self.open():
            self.turn(calm=True)
            self.now += STEP
            assert self.now < 4 * HOUR, "the fleet is back, and work is stuck"

    def turn(self, calm: bool = False) -> None:
        if not calm and (not self.open() or self.rng.random() < 0.01):
            self.begin_phase()
        for vm in list(self.vms.values()):
            self.act(vm, calm)
        for change in self.members.tick(self.now):
            if change.state == "lost":
                self.scheduler.leave(change.agent_id)
                self.ledger.left(change.agent_id, self.now)
        self.scheduler.tick(self.now)
        for grant in self.scheduler.dispatch(self.members.may_lease, self.now):
            step = grant.entry.progress_step
            self.resumed += step > 0
            vm = self.vms.get(grant.agent_id)
            if vm is not None:
                vm.held[grant.entry.request.request_id] = (grant.fence, step)
                self.backups += grant.backup
        self.check()

    def open(self) -> bool:
        """Return whether a phase still waits for something."""
        return any(e.state in ("queued", "leased") for e in self.scheduler.entries.values())

    def check(self) -> None:
        self.scheduler.validate()
        self.members.validate()
        self.ledger.validate(self.now)
        if self.rng.random() < 0.3:
            self.spots.moment(self.now, 0.0)
            self.stored |= self.ledger.dump_changed(self.now)
        self.spots.validate()
        assert all(count == 1 for count in self.commits.values()), "a trajectory committed twice"

    # --- the fleet ----------------------------------------------------------------------------

    def change_fleet(self, number: int) -> None:
        for _ in range(number):
            self.add_vm()
        for _ in range(-number):
            if self.vms:
                self.lose(self.rng.choice(list(self.vms)))

    def add_vm(self) -> None:
        self.made += 1
        agent_id = f"vm{self.made}"
        self.vms[agent_id] = Vm(agent_id, self.rng.choice([1, 1, 2, 4]))
        self.say_hello(agent_id)

    def say_hello(self, agent_id: str) -> None:
        vm = self.vms[agent_id]
        self.members.hello(Member(agent_id, "vm", "agent", 1, self.now, self.now))
        held = [HeldLease(r, fence) for r, (fence, _) in vm.held.items()]
        for lease in self.scheduler.join(agent_id, "agent", held, self.now):
            del vm.held[lease.request_id]
        self.scheduler.give(agent_id, CAPACITY - len(vm.held), (0,))
        self.ledger.join(agent_id, "vm", "agent", 1, 2.0, self.now)

    def lose(self, agent_id: str) -> None:
        """With a notice (everything committed and handed back), or without a word."""
        vm = self.vms.pop(agent_id)
        self.deaths += 1
        if self.rng.random() < 0.5 or self.members.present(agent_id) is None:
            return
        self.members.drain(agent_id, "notice")
        self.scheduler.revoke_credit(agent_id)
        for request_id, (fence, step) in vm.held.items():
            if step and self.scheduler.progress(request_id, fence, self.now) == "committed":
                self.scheduler.progress_committed(request_id, fence, step, "blob")
        held = [HeldLease(r, fence) for r, (fence, _) in vm.held.items()]
        self.scheduler.hand_back(agent_id, held)
        self.members.leave(agent_id, "drained", self.now)
        self.scheduler.leave(agent_id)
        self.ledger.left(agent_id, self.now)

    # --- work ---------------------------------------------------------------------------------

    def begin_phase(self) -> None:
        kind = self.rng.choice(["rollout", "rollout", "evaluate", "explore"])
        self.note_settled()
        self.scheduler.forget_settled()
        count = self.rng.randint(1, 60)
        self.scheduler.add(
            Request(f"r{i}", kind, 0, "p", 'a "A"', "A", i, 0, SAMPLER)
            for i in range(self.asked, self.asked + count)
        )
        self.asked += count

    def note_settled(self) -> None:
        """Every entry that the scheduler is about to forget is done, by one commit, or given up."""
        for request_id, entry in self.scheduler.entries.items():
            if entry.state in ("done", "failed"):
                assert (entry.state == "done") == (request_id in self.commits), entry
                self.given_up += entry.state == "failed"

    def act(self, vm: Vm, calm: bool) -> None:
        if self.now < vm.frozen_until:
            return
        if not calm and self.rng.random() < 0.01:
            # Stopped past its membership; afterwards it goes on as if nothing had been.
            vm.frozen_until = self.now + self.rng.uniform(5, 90)
            return
        if self.members.present(vm.agent_id) is None:
            self.say_hello(vm.agent_id)
        self.members.seen(vm.agent_id, self.now)
        vm.busy_s += STEP if vm.held else 0.0
        self.ledger.heartbeat(vm.agent_id, vm.busy_s, 0.0, self.now)
        if not calm and self.rng.random() < 0.01:
            vm.stuck_until = self.now + self.rng.uniform(20, 120)
        if self.now < vm.stuck_until:
            return
        if round(self.now / STEP) % vm.pace == 0:
            for request_id in list(vm.held):
                self.advance(vm, request_id, calm)

    def advance(self, vm: Vm, request_id: str, calm: bool) -> None:
        fence, step = vm.held[request_id]
        if not calm and self.rng.random() < 0.005:
            self.scheduler.failed(request_id, fence, final=False)
            self.drop(vm, request_id)
        elif step + 1 < STEPS_PER_TRAJECTORY:
            vm.held[request_id] = (fence, step + 1)
            if self.scheduler.progress(request_id, fence, self.now) == "committed":
                self.scheduler.progress_committed(request_id, fence, step + 1, "blob")
        else:
            self.finish(vm, request_id, fence)

    def finish(self, vm: Vm, request_id: str, fence: int) -> None:
        for _ in range(self.rng.choice([1, 1, 2])):
            # Now and then the acknowledgement is lost, and the result is sent again.
            outcome = self.scheduler.result(request_id, fence)
            if outcome == "committed":
                self.commits[request_id] = self.commits.get(request_id, 0) + 1
                self.stop(self.scheduler.settled(request_id))
                self.ledger.committed(vm.agent_id, STEP)
            elif outcome == "stale":
                self.stale += 1
                self.ledger.spent_in_vain(vm.agent_id, STEP)
        self.drop(vm, request_id)

    def stop(self, stops: dict[str, list[HeldLease]]) -> None:
        """Most holders hear that their lease is over; some work on, and report too late."""
        for agent_id, leases in stops.items():
            vm = self.vms.get(agent_id)
            for lease in leases:
                held = vm.held.get(lease.request_id) if vm else None
                if vm and held and held[0] == lease.fence and self.rng.random() < 0.8:
                    self.drop(vm, lease.request_id)

    def drop(self, vm: Vm, request_id: str) -> None:
        del vm.held[request_id]
        self.scheduler.give(vm.agent_id, 1, (0,))


@pytest.mark.timeout(3600)
def test_no_history_loses_or_doubles_anything():
    totals = {"stale": 0, "resumed": 0, "deaths": 0, "backups": 0, "commits": 0}
    for seed in range(COUNT):
        history = History(seed)
        history.run()
        history.note_settled()
        assert len(history.commits) + history.given_up == history.asked, seed
        history.stored |= history.ledger.dump_changed(history.now)
        assert history.stored == history.ledger.dump(history.now), seed
        totals["stale"] += history.stale
        totals["resumed"] += history.resumed
        totals["deaths"] += history.deaths
        totals["backups"] += history.backups
        totals["commits"] += len(history.commits)
    # The histories are worth something only where the rare paths were taken.
    assert all(count > 0 for count in totals.values()), totals


def test_a_history_repeats_from_its_seed():
    first, second = History(7), History(7)
    first.run()
    second.run()
    assert first.commits == second.commits
    assert first.ledger.dump(first.now) == second.ledger.dump(second.now)


def test_leases_that_no_backup_is_worth_are_left_out_without_a_difference(monkeypatch):
    short = [History(seed) for seed in range(4)]
    for history in short:
        history.run()
    monkeypatch.setattr(
        "spotlightd.fleet.scheduler.worth_a_look", lambda leased, pullers, late: list(leased)
    )
    for seed, history in enumerate(short):
        whole = History(seed)
        whole.run()
        assert (whole.backups, whole.commits) == (history.backups, history.commits)
        assert whole.ledger.dump(whole.now) == history.ledger.dump(history.now)
    assert sum(history.backups for history in short) > 0


def test_a_broken_fence_check_is_caught(monkeypatch):
    """Any holder, however late, may write: then something commits that another one has."""

    def lenient(self: Scheduler, request_id: str, fence: int):
        return self.entries.get(request_id)

    monkeypatch.setattr(Scheduler, "_current", lenient)
    with pytest.raises((AssertionError, KeyError)):
        for seed in range(10):
            History(seed).run()
