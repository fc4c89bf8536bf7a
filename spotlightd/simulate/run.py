"""One simulated run: a configuration, a trace of spot VMs, a seed.

trace --> VMs boot, fetch, say Hello, get notices, vanish      (modelled, `assumptions.toml`)
VMs   --> VirtualDaemon: planner, scheduler, leases, ledger    (the daemon's own)
train --> Learner: what the realised group variance was worth  (fitted to real runs)
"""

import random
from collections.abc import Callable
from statistics import fmean

from spotlightd.config import Config
from spotlightd.errors import ConfigError
from spotlightd.planner.cycle import Cycle
from spotlightd.planner.plan import CyclePlan, PromptSpec
from spotlightd.planner.seeds import keyed_hash
from spotlightd.simulate.assumptions import Assumptions
from spotlightd.simulate.clock import Clock
from spotlightd.simulate.durations import Durations
from spotlightd.simulate.fleet import TRAINER, VirtualDaemon
from spotlightd.simulate.learning import Learner, drawn_exponents, load_fit
from spotlightd.simulate.outcome import Outcome, Usage
from spotlightd.simulate.rewards import Fidelity, RewardModel
from spotlightd.simulate.traces import Trace, is_silent, seat_changes
from spotlightd.simulate.transfers import arrival_s, arrival_without_peers_s, last_arrival_s
from spotlightd.simulate.variants import Variant
from spotlightd.simulate.vm import Pace, VirtualVm
from spotlightd.wire.messages import Role
from spotlightd.wire.sampling import Request
from spotlightd.wire.training import Train, Trained

PROMPTS = 1000
REPORTS = 20
"""Reports of progress in one update."""
AUTO_COMMIT_EVERY = 1
"""A commit of a latent of a megabyte at most costs less than a hundredth of a step of this size."""
MOST_S = 30 * 86_400.0


class Simulation:
    """Args:
    config: with the variant's changes; the model's folder and prompt files are not read.
    reserved: reserved GPUs.
    """

    def __init__(
        self,
        config: Config,
        given: Assumptions,
        variant: Variant,
        trace: Trace,
        seed: int,
        most_s: float = MOST_S,
    ) -> None:
        task = given.tasks.get(config.rewards.train)
        if task is None:
            known = ", ".join(given.tasks)
            raise ConfigError(
                f"rewards.train '{config.rewards.train}' has no model in the assumptions' [tasks] "
                f"(known: {known})"
            )
        self.config, self.given, self.variant, self.seed = config, given, variant, seed
        self.most_s = most_s
        self.clock = Clock()
        self.durations = Durations(config, given)
        steps = config.sampler.num_steps
        sigmas = tuple(1 - i / steps for i in range(steps + 1))
        prompts = [PromptSpec(f"p{i}", f'a sign "{i}"', str(i)) for i in range(PROMPTS)]
        self.cycle = Cycle(CyclePlan(config, sigmas, prompts, prompts))
        learning = given.learning
        fitted = drawn_exponents(seed, load_fit())
        exponents = (
            fitted[0] if learning.variance_exponent < 0 else learning.variance_exponent,
            fitted[1] if learning.share_exponent < 0 else learning.share_exponent,
        )
        self.learner = Learner(task, exponents, learning.group_size)
        names = config.rewards.names
        fidelity = Fidelity(given.fidelity)
        self.rewards = RewardModel(
            task, fidelity, config.rewards.train, names, config.planner.rank_by, steps
        )
        self.daemon = VirtualDaemon(
            config, self.clock, self.cycle, self._score, given.reward.seconds, self._train
        )
        self.version = 0
        self.ratios: list[float] = []
        self.preemptions = self.silent = 0
        self.finished_at: float | None = None
        self._rng = random.Random(keyed_hash("simulate", seed))
        self._boot_s: dict[str, float] = {}
        """GPU-seconds of booting by zone."""
        self._seats: dict[int, tuple[float, VirtualVm | None]] = {}
        """Who sits there: since when, and its VM once it has said Hello."""
        self._booting = 0
        """Seats of which the VM has not said Hello."""
        self._able: set[str] = set()
        """Agents that live and hold weights."""
        self._made = 0
        self._zones = sorted(given.prices.spot)
        if variant.spot:
            self._follow(trace)

    # --- the fleet ----------------------------------------------------------------------------

    def _follow(self, trace: Trace) -> None:
        notice_s, silent_share = self.given.preemption.notice_s, self.given.preemption.silent_share
        for change in seat_changes(trace, self.given.fleet.spot_vms, self.seed, self.most_s):
            if change.up:
                self.clock.at(change.at, self._boot, change.seat)
                continue
            if not is_silent(change, self.seed, silent_share):
                self.clock.at(change.at - notice_s, self._notice, change.seat, change.at)
            self.clock.at(change.at, self._down, change.seat)

    def _boot(self, seat: int) -> None:
        self._seats[seat] = (self.clock.now, None)
        self._booting += 1
        fetch_s = self._last_arrival_s(self.given.transfer.base_gb, self._booting, len(self._able))
        at = self.clock.now + self.given.boot.boot_s
        self.clock.at(at, self._hello, seat, self.clock.now, fetch_s)

    def _arrival_s(self, gigabytes: float, receivers: int, holders: int) -> tuple[float, ...]:
        if self.variant.peers:
            return arrival_s(self.given.transfer, gigabytes, receivers, holders)
        return arrival_without_peers_s(self.given.transfer, gigabytes, receivers)

    def _last_arrival_s(self, gigabytes: float, receivers: int, holders: int) -> float:
        if self.variant.peers:
            return last_arrival_s(self.given.transfer, gigabytes, receivers, holders)
        return arrival_without_peers_s(self.given.transfer, gigabytes, 1)[0] * receivers

    def _hello(self, seat: int, since: float, fetch_s: float) -> None:
        if self._seats.get(seat) != (since, None):
            return  # It was taken away while it booted.
        fleet = self.given.fleet
        zone = self._zones[seat % len(self._zones)]
        self._bill_boot(seat, since)
        self._booting -= 1
        self._made += 1
        agent_id = f"vm{seat}-{self._made}"
        vm = self._make_vm(agent_id, "agent", fleet.gpus_per_vm, fleet.speed_spread)
        self._seats[seat] = (since, vm)
        self.daemon.hello(vm, zone, self.given.prices.spot[zone], 0)
        vm.loading_s = self.given.boot.load_s * vm.workers
        self.clock.at(self.clock.now + fetch_s + self.given.boot.load_s, self._loaded, vm)

    def _make_vm(self, agent_id: str, role: Role, workers: int, spread: float) -> VirtualVm:
        durations, variant, regroup = self.durations, self.variant, self.given.regroup
        slow = max(1 + spread * self._rng.gauss(0, 1), 0.5)
        every = self.config.fleet.commit_every
        pace = Pace(
            durations.step_s * slow,
            durations.decode_s * slow,
            0 if not variant.commits else AUTO_COMMIT_EVERY if every == "auto" else every,
            durations.curve(workers) if variant.groups and role == "agent" else None,
            regroup.elastic_s if variant.elastic else regroup.rebuilt_s,
        )
        return VirtualVm(self.clock, self.daemon, agent_id, role, workers, pace)

    def _loaded(self, vm: VirtualVm) -> None:
        """The model is on its GPUs: the current adapter comes next, and then it can sample."""
        if vm.alive:
            delay = self._last_arrival_s(self.given.transfer.adapter_gb, 1, len(self._able))
            self.clock.at(self.clock.now + delay, self._has, vm, self.version, True)

    def _has(self, vm: VirtualVm, version: int, first: bool) -> None:
        if not vm.alive or (vm.versions and vm.versions[0] >= version):
            return
        if version < self.version:
            self._loaded(vm)  # A newer one appeared meanwhile.
            return
        vm.versions = (version,)
        self._able.add(vm.agent_id)
        first_credit = self.given.fleet.slots_per_gpu * vm.workers if first else 0
        self.daemon.give(vm, first_credit)

    def _bill_boot(self, seat: int, since: float) -> None:
        zone = self._zones[seat % len(self._zones)]
        held = (self.clock.now - since) * self.given.fleet.gpus_per_vm
        self._boot_s[zone] = self._boot_s.get(zone, 0.0) + held

    def _notice(self, seat: int, gone_at: float) -> None:
        since, vm = self._seats.get(seat, (0.0, None))
        if vm is not None and vm.alive:
            self.preemptions += 1
            self._able.discard(vm.agent_id)
            self.daemon.drained(vm, self.variant.commits)
            self._seats[seat] = (since, vm)

    def _down(self, seat: int) -> None:
        since, vm = self._seats.pop(seat, (0.0, None))
        if vm is None:
            self._bill_boot(seat, since)
            self._booting -= 1
        elif vm.alive:
            self._able.discard(vm.agent_id)
            self.preemptions += 1
            self.silent += 1
            self.daemon.vanished(vm)

    # --- training -----------------------------------------------------------------------------

    @property
    def _reserved_gpus(self) -> int:
        return self.given.fleet.reserved_gpus * self.variant.reserved_factor

    def _score(self, request: Request) -> dict[str, float]:
        versions = len(self.learner.levels) - 1
        level = self.learner.levels[min(request.policy_version, versions)]
        return self.rewards.scores(request, level)

    def _train(self, message: Train) -> None:
        rewards = [[sample.reward for sample in group.samples] for group in message.groups]
        images = sum(len(group) for group in rewards if max(group) > min(group))
        spread = 1 + self.given.train.spread * self._rng.gauss(0, 1)
        seconds = self.durations.train_s(max(images, 1), self._reserved_gpus) * max(spread, 0.5)
        level = self.learner.levels[-1]
        random_groups = [self.rewards.random_variance(g.prompt_id, level) for g in message.groups]
        self.ratios.append(self.learner.trained(rewards, random_groups))
        now = self.clock.now
        for report in range(1, REPORTS):
            self.clock.at(now + seconds * report / REPORTS, self._progressed, report / REPORTS)
        self.clock.at(now + seconds, self._trained, message.iteration, seconds)

    def _progressed(self, fraction: float) -> None:
        self.daemon.train_fraction = fraction

    def _trained(self, iteration: int, seconds: float) -> None:
        self.version = iteration + 1
        self.daemon.train_fraction = 0.0
        trainer = self.daemon.vms[TRAINER]
        trainer.busy_s += seconds * trainer.workers
        self.daemon.ledger.committed(TRAINER, seconds * trainer.workers)
        if self.learner.reached:
            self.finished_at = self.clock.now
            return
        if self.config.run.trainer_rolls_out:
            trainer.versions = (self.version,)
            self.daemon.give(trainer, 0)
        ready = [vm for vm in self.daemon.able() if vm.versions]
        if ready:
            times = self._arrival_s(self.given.transfer.adapter_gb, len(ready), 0)
            for vm, delay in zip(ready, times, strict=True):
                self.clock.at(self.clock.now + delay, self._has, vm, self.version, False)
        trained = Trained(iteration, self.version, {}, (), 1e-4, seconds)
        self.daemon.act(lambda cycle: cycle.trained(trained))

    # --- from beginning to end ----------------------------------------------------------------

    def run(self, watch: Callable[[float], None] | None = None) -> Outcome:
        """Play it.

        Args:
            watch: told the virtual time at each heartbeat.
        """
        trainer = self._make_vm(TRAINER, "trainer", self._reserved_gpus, 0.0)
        rolls_out = self.config.run.trainer_rolls_out
        trainer.versions = (0,) if rolls_out else ()
        credit = self.given.fleet.slots_per_gpu * trainer.workers if rolls_out else 0
        self.daemon.hello(trainer, "", self.given.prices.reserved, credit)
        self.clock.at(0.0, self._tick, watch)
        self.daemon.act(lambda cycle: cycle.trainer_ready(0))
        self.clock.run(self._going, self.most_s)
        for vm in list(self.daemon.vms.values()):
            self.daemon.ledger.heartbeat(vm.agent_id, vm.busy_until_now(), vm.loading_s)
        return self._outcome()

    def _going(self) -> bool:
        return self.finished_at is None and not self.cycle.complete

    def _tick(self, watch: Callable[[float], None] | None) -> None:
        self.daemon.tick()
        if watch is not None:
            watch(self.clock.now)
        self.clock.at(self.clock.now + self.config.fleet.heartbeat_s, self._tick, watch)

    def _outcome(self) -> Outcome:
        daemon, now = self.daemon, self.clock.now
        daemon.ledger.validate(now)
        usage = {"agent": Usage(), "trainer": Usage()}
        for agent_id, account in daemon.ledger.accounts.items():
            one = usage[account.role]
            for name, seconds in daemon.ledger.classes(agent_id, now).items():
                setattr(one, name, getattr(one, name) + seconds)
            one.cost += account.cost(now)
        for seat, (since, vm) in self._seats.items():
            if vm is None:
                self._bill_boot(seat, since)
        spot, prices = usage["agent"], self.given.prices.spot
        spot.boot = sum(self._boot_s.values())
        spot.cost += sum(seconds / 3600 * prices[zone] for zone, seconds in self._boot_s.items())
        phases = daemon.counts.phase_s
        return Outcome(
            self.variant.name,
            self.seed,
            self.finished_at is not None,
            now,
            len(self.ratios),
            self.learner.levels[-1],
            usage["trainer"],
            spot,
            self.preemptions,
            self.silent,
            daemon.counts.lost_gpu_s,
            daemon.counts.resumed,
            tuple(daemon.counts.recovery_s),
            daemon.counts.explored,
            fmean(self.ratios) if self.ratios else 0.0,
            fmean(phases.get("train", [0.0])),
            fmean(phases.get("rollout", [0.0])),
            self.clock.events,
            daemon.digest,
        )
