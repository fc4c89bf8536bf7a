"""The planner in virtual time against an oracle, fixed plans, plain UCB and a published recipe.

    python benchmarks/planner.py [--json FILE] [--check] [--seeds 4] [--iterations 100]

A made-up world (`_world.py`): rank fidelity that drifts and jumps, a fleet that loses VMs in
bursts, training times that drift, prompts of heavy-tailed spread, some without any. The planner
and the selection are the daemon's own code. Every policy meets the same world; what counts is the
variance of the groups that are regenerated, mean over prompts and iterations.

Targets (--check): 90 % of the oracle; more than the best fixed (N, tail) in hindsight, plain UCB
over the same cells and the recipe, in every world; fewer than 2 % of iterations in which a
candidate was still unfinished when training ended (not the first, of unknown length); selection
among a million seeds in a second.
"""

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev, pvariance

import numpy as np
from _report import finish, make_parser
from _world import (
    CONTROLS,
    FULL_TAIL,
    GROUP_SIZE,
    MOST,
    TAILS,
    WINDOW_STEPS,
    Iteration,
    cost_s,
    explore,
    make_world,
    regenerate,
)

from spotlightd.planner.allocation import PromptProgress, next_prompt
from spotlightd.planner.exploration import Planner
from spotlightd.planner.outcomes import GroupOutcome
from spotlightd.planner.selection import Candidate, select_seeds
from spotlightd.planner.timing import Moment
from spotlightd.planner.variance import group_gain

FIXED_CANDIDATES, FIXED_TAILS = (24, 48, 72, 96), (1, 2, 4, 28)
"""Cells of the fixed plans, and arms of plain UCB."""
RECIPE_CANDIDATES, RECIPE_TAIL = 96, 12
"""96 candidates at 6 of 10 steps, here 24 of 40; the best 12 and the worst 12 train (Sol-RL)."""
SIZE = 1_000_000


@dataclass
class Tally:
    """Mean group variance of each iteration, and how many overran the training window."""

    variances: list[float] = field(default_factory=list)
    misses: int = 0

    @property
    def mean(self) -> float:
        return fmean(self.variances)


def run_bandit(world: Sequence[Iteration], seed: int) -> Tally:
    planner = Planner(GROUP_SIZE, CONTROLS, FULL_TAIL, MOST - GROUP_SIZE, seed)
    tally, steps = Tally(), {t: WINDOW_STEPS + t for t in planner.tails}
    groups = GROUP_SIZE
    for number, now in enumerate(world):
        exploration = planner.begin(
            number, {p: dict(steps) for p in now.prompts}, groups, now.moment(0.0)
        )
        tail = exploration.plan.tail

        def ask(moment: Moment, on=exploration) -> list[tuple[str, str]]:
            added = []
            for prompt in planner.next(on, moment):
                request = f"{prompt}-{on.prompts[prompt].issued}"
                on.added(request, prompt, moment.now)
                added.append((request, prompt))
            return added

        def scored(request, prompt, value, gpu_s, at, agent, on=exploration) -> None:
            planner.scored(on, request, value, agent, gpu_s, at)

        scores = explore(now, tail, ask, scored)
        missed = planner.trained(exploration, now.moment(now.train_s))
        tally.misses += missed and exploration.timed
        outcomes = [_outcome(now, prompt, found) for prompt, found in scores.items()]
        tally.variances.append(fmean(pvariance(o.fresh) for o in outcomes))
        planner.learn(outcomes, tail)
    return tally


def _outcome(world: Iteration, prompt: str, scores: list[float]) -> GroupOutcome:
    indices, fresh, controls = regenerate(world, prompt, scores)
    spread = pstdev(scores) if len(scores) > 1 else 0.0
    stale = tuple(scores[i] if i < len(scores) else None for i in indices)
    return GroupOutcome(prompt, len(scores), stale, tuple(fresh), tuple(controls), spread, spread)


def run_fixed(world: Sequence[Iteration], candidates: int, tail: float) -> Tally:
    """N seeds per prompt by turns, all asked for at once; whatever is scored in time counts."""
    tally = Tally()
    for now in world:
        variances, missed = _fixed_iteration(now, candidates, tail, CONTROLS)
        tally.variances.append(variances)
        tally.misses += missed
    return tally


def _fixed_iteration(
    now: Iteration, candidates: int, tail: float, controls: int
) -> tuple[float, bool]:
    wanted = [(f"{p}-{i}", p) for i in range(candidates) for p in now.prompts]

    def ask(moment: Moment) -> list[tuple[str, str]]:
        added, wanted[:] = list(wanted), []
        return added

    scores = explore(now, tail, ask, lambda *_: None)
    missed = sum(map(len, scores.values())) < candidates * len(now.prompts)
    groups = [regenerate(now, p, found, controls)[1] for p, found in scores.items()]
    return fmean(map(pvariance, groups)), missed


def run_recipe(world: Sequence[Iteration]) -> Tally:
    """The published recipe, without control seeds, stopped like the others when training ends."""
    tally = Tally()
    for now in world:
        variance, missed = _fixed_iteration(now, RECIPE_CANDIDATES, RECIPE_TAIL, 0)
        tally.variances.append(variance)
        tally.misses += missed
    return tally


def run_ucb(world: Sequence[Iteration]) -> Tally:
    """UCB1 with one arm per cell (N, tail); the signal is the iteration's mean variance."""
    arms = [(n, float(t)) for n in FIXED_CANDIDATES for t in FIXED_TAILS]
    sums, counts, tally, largest = [0.0] * len(arms), [0] * len(arms), Tally(), 1e-9
    for number, now in enumerate(world):
        if number < len(arms):
            chosen = number
        else:
            chosen = max(
                range(len(arms)),
                key=lambda a: (
                    sums[a] / counts[a] / largest + math.sqrt(2 * math.log(number) / counts[a])
                ),
            )
        variance, missed = _fixed_iteration(now, *arms[chosen], CONTROLS)
        sums[chosen] += variance
        counts[chosen] += 1
        largest = max(largest, variance)
        tally.variances.append(variance)
        tally.misses += missed
    return tally


def run_oracle(world: Sequence[Iteration]) -> Tally:
    """Knows fidelity, spreads, the fleet's future and the end of training; same selection."""
    tally = Tally()
    for now in world:
        plans = [_oracle_plan(now, float(tail)) for tail in TAILS]
        _, tail, counts = max(plans, key=lambda plan: plan[0])
        groups = [
            regenerate(now, p, [now.stale(p, i, tail) for i in range(n)])[1]
            for p, n in counts.items()
        ]
        tally.variances.append(fmean(map(pvariance, groups)))
    return tally


def _oracle_plan(now: Iteration, tail: float) -> tuple[float, float, dict[str, int]]:
    """Return (expected variance, tail, candidates by prompt) of the best use of all the time."""
    capacity = sum(
        int(max(min(end, now.train_s) - start, 0) / (cost_s(tail) / speed))
        for start, end, speed in now.fleet
    )
    rho = now.fidelity[tail]
    prompts = [PromptProgress(p, 1, kind.variance, 0) for p, kind in now.prompts.items()]
    for _ in range(capacity):
        prompt, _ = next_prompt(prompts, GROUP_SIZE, CONTROLS, rho, MOST - GROUP_SIZE)
        if prompt is None:
            break
        prompt.issued += 1
    value = sum(p.prior_variance * group_gain(p.issued, GROUP_SIZE, CONTROLS, rho) for p in prompts)
    return value, tail, {p.prompt_id: p.issued for p in prompts}


def selection_seconds(rewards: np.ndarray) -> float:
    """CPU seconds of one selection among a million candidates."""
    rng = np.random.default_rng(0)
    seeds = rng.integers(0, 2**63, SIZE)
    candidates = [Candidate(int(s), float(r)) for s, r in zip(seeds, rewards, strict=True)]
    began = time.process_time()
    select_seeds(candidates, (), 16, 4, 7)
    return time.process_time() - began


def compare(seed: int, iterations: int) -> dict[str, float]:
    """Play one world with every policy; return ratios of mean variance."""
    world = make_world(seed, iterations)
    bandit = run_bandit(world, seed)
    oracle = run_oracle(world)
    fixed = {(n, t): run_fixed(world, n, float(t)) for n in FIXED_CANDIDATES for t in FIXED_TAILS}
    best = max(fixed, key=lambda cell: fixed[cell].mean)
    random = fmean(_fixed_iteration(now, 0, 1.0, CONTROLS)[0] for now in world)
    return {
        "over_oracle": bandit.mean / oracle.mean,
        "over_best_fixed": bandit.mean / fixed[best].mean,
        "over_ucb": bandit.mean / run_ucb(world).mean,
        "over_recipe": bandit.mean / run_recipe(world).mean,
        "over_random": bandit.mean / random,
        "overruns": bandit.misses / iterations,
        "best_fixed_candidates": best[0],
        "best_fixed_tail": best[1],
    }


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=100)
    args = parser.parse_args()
    runs = [compare(seed, args.iterations) for seed in range(1, args.seeds + 1)]
    figures = {}
    for name in runs[0]:
        values = [run[name] for run in runs]
        figures[name] = fmean(values)
        if name.startswith("over"):
            figures[f"{name}_min"], figures[f"{name}_max"] = min(values), max(values)
    rng = np.random.default_rng(1)
    figures["selection_s_continuous"] = selection_seconds(rng.random(SIZE))
    figures["selection_s_binary"] = selection_seconds(rng.integers(0, 2, SIZE).astype(float))
    return finish(
        "Planner in virtual time: variance of trained groups",
        figures,
        args,
        at_least={
            "over_oracle": 0.9,
            "over_best_fixed_min": 1.0,
            "over_ucb_min": 1.0,
            "over_recipe_min": 1.0,
        },
        at_most={"overruns": 0.02, "selection_s_continuous": 1.0, "selection_s_binary": 1.0},
    )


if __name__ == "__main__":
    sys.exit(main())
