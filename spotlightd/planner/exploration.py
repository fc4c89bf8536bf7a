"""One iteration's exploration, from its plan to what it taught: the planner's events and decisions.

begin   plan steps and seeds for the iteration, as training begins
next    one candidate at a time: whose group gains most, and does it still finish in time
scored  a candidate's scores arrived
trained training ended: was the window kept
learn   fidelity, spreads and harm, from the regenerated groups
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import Struct

from spotlightd.planner.allocation import PromptProgress, Spreads, next_prompt
from spotlightd.planner.bandit import Arms, Offer, choose, tails_of
from spotlightd.planner.fidelity import Fidelity
from spotlightd.planner.outcomes import GroupOutcome, Realised, outcome_metrics
from spotlightd.planner.timing import Margin, Moment, Times, TrainingWindow
from spotlightd.planner.variance import group_gain

LEAST_FIDELITY = 0.3
WORTHWHILE = 0.01
"""Exploration stops where all the time left would raise variance by less than this share."""

StepsByTail = Mapping[int, int]


class PlannerState(Struct):
    """Everything learned; stored with the run, so that a restart goes on with it."""

    arms: Arms = msgspec.field(default_factory=Arms)
    spreads: Spreads = msgspec.field(default_factory=Spreads)
    times: Times = msgspec.field(default_factory=Times)
    margin: Margin = msgspec.field(default_factory=Margin)
    realised: Realised = msgspec.field(default_factory=Realised)


@dataclass(frozen=True)
class Plan:
    """What one iteration explores, and why."""

    tail: int
    """ODE steps after the SDE window."""
    steps: float
    """Denoising steps of a candidate, mean over prompts."""
    candidates: int | None
    """Seeds per prompt that are expected to fit; None while times are not known yet."""
    most: int
    """Seeds per prompt at most."""
    rho: float
    rho_error: float
    gain: float
    """Expected variance of a group over a random one's."""
    reason: str


@dataclass
class Exploration:
    """One iteration's exploration in progress."""

    plan: Plan
    window: TrainingWindow
    prompts: dict[str, PromptProgress]
    agents: frozenset[str]
    """The fleet that the plan counts on."""
    in_flight: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Request id -> (prompt, when it was added)."""
    timed: bool = False
    """Whether the window was predicted, so that running over it is a miss."""

    def added(self, request_id: str, prompt_id: str, now: float) -> None:
        self.in_flight[request_id] = (prompt_id, now)
        self.prompts[prompt_id].issued += 1


class Planner:
    """Plans explorations of one run. Pure: the clock and the fleet come in as a `Moment`.

    Args:
        group_size, controls: K and c.
        full_tail: ODE steps that a full trajectory has after its window, at most.
        most: candidates per prompt at most.
        seed: keys the draws.
        staleness: policy versions between exploration and training.
    """

    def __init__(
        self,
        group_size: int,
        controls: int,
        full_tail: int,
        most: int,
        seed: int,
        state: PlannerState | None = None,
        staleness: int = 1,
    ) -> None:
        self.group_size, self.controls, self.most = group_size, controls, most
        self.seed, self.staleness = seed, staleness
        self.tails = tails_of(full_tail)
        self.state = state or PlannerState()

    def belief(self, tail: int) -> Fidelity:
        return self.state.arms.belief(tail, self.staleness)

    # --- planning -----------------------------------------------------------------------------

    def begin(
        self,
        iteration: int,
        steps: Mapping[str, StepsByTail],
        groups: int,
        moment: Moment,
        tail: int | None = None,
    ) -> Exploration:
        """Plan the exploration for an iteration's prompts, as training begins.

        Args:
            steps: by prompt, then by tail: denoising steps of a candidate.
            groups: groups with spread that train meanwhile.
            tail: the arm, where it was chosen before a restart.
        """
        window = TrainingWindow(moment.now, groups)
        tails = self.tails if tail is None else [tail]
        offers = [self._offer(each, steps, window, moment) for each in tails]
        key = (self.seed, iteration)
        offer = choose(offers, self.state.arms, self.staleness, self.group_size, self.controls, key)
        plan = self._plan(offer.tail, offer.steps, len(steps), window, moment)
        prompts = {
            prompt: self.state.spreads.start(prompt, by_tail[plan.tail], self.group_size)
            for prompt, by_tail in steps.items()
        }
        return Exploration(plan, window, prompts, frozenset(moment.agents))

    def _offer(
        self, tail: int, steps: Mapping[str, StepsByTail], window: TrainingWindow, moment: Moment
    ) -> Offer:
        mean_steps = sum(by_tail[tail] for by_tail in steps.values()) / max(len(steps), 1)
        fits = self._fits(mean_steps, window, moment)
        count = self.most if fits is None else int(fits / max(len(steps), 1))
        return Offer(tail, mean_steps, min(count, self.most))

    def _plan(
        self, tail: int, steps: float, prompts: int, window: TrainingWindow, moment: Moment
    ) -> Plan:
        arm = self.belief(tail)
        rho, error = arm.rho(), arm.error()
        caution = self._caution(rho)
        most = self.group_size if caution else self.most
        fits = self._fits(steps, window, moment)
        candidates = None if fits is None else min(int(fits / max(prompts, 1)), most)
        gain = group_gain(candidates or 0, self.group_size, self.controls, rho)
        workers = sum(spot.workers for spot in moment.agents.values())
        gpus = "1 GPU scores" if workers == 1 else f"{workers} GPUs score"
        if not moment.agents:
            reason = "no spot GPU is there: the next groups are random seeds"
        elif candidates is None:
            reason = "how long training takes is not known yet: explore until it ends"
        else:
            reason = (
                f"{candidates} seeds for each of {prompts} prompts at {steps:.3g} steps: "
                f"{gpus} {fits:.0f} before training ends; rank fidelity "
                f"{rho:.2f} ± {error:.2f} lets a group's variance grow {gain:.2f}-fold"
            )
        if caution and moment.agents:
            reason += f"; {caution}, so no more than the {self.group_size} seeds of a group"
        return Plan(tail, steps, candidates, most, rho, error, gain, reason)

    def _caution(self, rho: float) -> str:
        """Return why to explore no more than needed for measuring; empty where all is well."""
        if rho < LEAST_FIDELITY:
            return f"scores hardly predict rewards (fidelity below {LEAST_FIDELITY})"
        if self.state.realised.harms():
            return "selected groups spread less than their control seeds"
        return ""

    def _fits(self, steps: float, window: TrainingWindow, moment: Moment) -> float | None:
        """Return how many candidates finish within the window."""
        times = self.state.times
        left = window.seconds_left(times, self.state.margin, moment, steps)
        rate = times.rate(moment.agents, steps)
        if left is None or rate is None:
            return None
        # The last ones are added when `left` is over and finish within their latency.
        return max(left, 0.0) * rate + (moment.slots if left > 0 else 0)

    # --- going on -----------------------------------------------------------------------------

    def next(self, exploration: Exploration, moment: Moment) -> list[str]:
        """Return the prompts that get a candidate each now; the caller adds the requests.

        No more than the fleet can hold at once: later ones are worth more for being chosen
        with more scores known. Agents that left or joined count at once.
        """
        plan = exploration.plan
        exploration.window.observe(moment)
        if frozenset(moment.agents) != exploration.agents:
            exploration.agents = frozenset(moment.agents)
            exploration.plan = plan = self._plan(
                plan.tail, plan.steps, len(exploration.prompts), exploration.window, moment
            )
        left = exploration.window.seconds_left(
            self.state.times, self.state.margin, moment, plan.steps
        )
        exploration.timed = left is not None
        if left is not None and left <= 0:
            return []
        chosen: list[PromptProgress] = []
        prompts = exploration.prompts.values()
        for _ in range(moment.slots - len(exploration.in_flight)):
            prompt, gain = next_prompt(prompts, self.group_size, self.controls, plan.rho, plan.most)
            if prompt is None or self._idle_rather(gain, prompts, left, moment, plan):
                break
            prompt.issued += 1
            chosen.append(prompt)
        # They count as issued once the caller has added them.
        for prompt in chosen:
            prompt.issued -= 1
        return [prompt.prompt_id for prompt in chosen]

    def _idle_rather(
        self,
        gain: float,
        prompts: Iterable[PromptProgress],
        left: float | None,
        moment: Moment,
        plan: Plan,
    ) -> bool:
        """Whether even the best next candidates, for all the time left, gain next to nothing."""
        rate = self.state.times.rate(moment.agents, plan.steps)
        if left is None or rate is None:
            return False
        return gain * max(left * rate, 1) < WORTHWHILE * sum(p.variance for p in prompts)

    def scored(
        self,
        exploration: Exploration,
        request_id: str,
        reward: float | None,
        agent_id: str,
        gpu_s: float,
        now: float,
    ) -> None:
        """A candidate was scored (or failed for good: None)."""
        prompt_id, added_at = exploration.in_flight.pop(request_id, ("", 0.0))
        if not prompt_id:
            return
        progress = exploration.prompts[prompt_id]
        if reward is None:
            progress.issued -= 1
            return
        progress.score(reward)
        times = self.state.times
        times.committed(agent_id, progress.steps, gpu_s)
        times.latency.observe(progress.steps, now - added_at, 0.99)

    def trained(self, exploration: Exploration, moment: Moment) -> bool:
        """Training ended; return whether exploration was still running then (a miss)."""
        missed = bool(exploration.in_flight)
        if exploration.timed:
            self.state.margin.settle(missed)
        self.state.times.trained(exploration.window, moment.now)
        self.state.times.forget_absent(moment.agents)
        for progress in exploration.prompts.values():
            self.state.spreads.explored(progress)
        return missed

    # --- learning -----------------------------------------------------------------------------

    def learn(self, outcomes: Sequence[GroupOutcome], tail: int | None) -> dict[str, float]:
        """Learn from an iteration's regenerated groups; return its figures.

        Args:
            tail: the arm that was explored; None where every seed is random.
        """
        self.state.arms.forget()
        rho = self.belief(tail).rho() if tail is not None else 0.0
        figures = outcome_metrics(outcomes, self.group_size, self.controls, rho)
        for outcome in outcomes:
            random = outcome.controls or (outcome.fresh if tail is None else [])
            self._learn_spread(outcome, list(random))
            if tail is not None:
                self.belief(tail).observe(*outcome.pairs())
        if tail is None:
            return figures
        self.state.realised.observe(outcomes)
        arm = self.belief(tail)
        figures |= {
            "planner.rho": arm.rho(),
            "planner.rho_error": arm.error(),
            "planner.tail": float(tail),
        }
        gain = self.state.realised.gain()
        return figures if gain is None else figures | {"planner.gain": gain}

    def _learn_spread(self, outcome: GroupOutcome, random: list[float]) -> None:
        """A prompt's variance, from all its candidates where explored, else from random seeds."""
        if outcome.candidates > 1:
            self.state.spreads.observe(outcome.prompt_id, outcome.reward_spread**2)
        elif len(random) > 1:
            mean = sum(random) / len(random)
            variance = sum((r - mean) ** 2 for r in random) / (len(random) - 1)
            self.state.spreads.observe(outcome.prompt_id, variance)
