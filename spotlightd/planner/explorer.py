"""Exploration as requests: what the planner's decisions mean for the next iteration's prompts.

off            nothing is explored
critical_path  N candidates with the weights that will train, before each rollout
fixed          N candidates with stale weights, while training lasts
bandit         the planner adds candidates one by one while training lasts
"""

from collections.abc import Mapping
from dataclasses import dataclass

from spotlightd.planner.exploration import Exploration, Planner, PlannerState
from spotlightd.planner.outcomes import GroupOutcome
from spotlightd.planner.plan import CyclePlan, GroupPlan
from spotlightd.planner.timing import Moment
from spotlightd.wire.sampling import Request

Scores = Mapping[str, float]


@dataclass(frozen=True)
class Begun:
    """An exploration that begins: its first requests, and why it is as it is."""

    groups: list[GroupPlan]
    tail: int
    requests: list[Request]
    reason: str


class Explorer:
    """Explores in the mode that the configuration names.

    Args:
        plan: the run's prompts and seeds.
        state: what was learned; changed in place.
    """

    def __init__(self, plan: CyclePlan, state: PlannerState) -> None:
        section = plan.config.planner
        self.mode = section.mode
        self.before_rollout = section.mode == "critical_path"
        self.planner = Planner(
            section.group_size,
            plan.controls,
            plan.full_tail,
            section.max_candidates,
            plan.config.run.seed,
            state,
            staleness=0 if self.before_rollout else 1,
        )
        self.exploration: Exploration | None = None
        """In progress, in mode `bandit`."""
        self._groups: dict[str, GroupPlan] = {}
        """Its prompts."""
        self._plan = plan
        self._iteration = 0

    def begin(self, iteration: int, groups_training: int, moment: Moment) -> Begun:
        """Explore for `iteration`, while so many groups with spread train."""
        section = self._plan.config.planner
        if self.mode == "bandit":
            groups = self._plan.candidate_groups(iteration, 0)
            self._begin(groups, iteration, groups_training, moment, None)
            assert self.exploration is not None
            chosen = self.exploration.plan
            return Begun(groups, chosen.tail, self.more(moment), chosen.reason)
        tail = section.tail_steps or max(self._plan.full_tail, 0)
        groups = self._plan.candidate_groups(iteration, section.candidates)
        version = iteration if self.before_rollout else iteration - 1
        requests = self._plan.explorations(groups, iteration, version, tail)
        weights = "its own weights" if self.before_rollout else "stale weights"
        reason = f"{section.candidates} seeds for each of {len(groups)} prompts, with {weights}"
        return Begun(groups, tail, requests, reason)

    def _begin(
        self,
        groups: list[GroupPlan],
        iteration: int,
        groups_training: int,
        moment: Moment,
        tail: int | None,
    ) -> None:
        tails = self.planner.tails
        steps = {
            g.prompt_id: self._plan.steps_by_tail(g.prompt_id, iteration, tails) for g in groups
        }
        self._groups = {group.prompt_id: group for group in groups}
        self._iteration = iteration
        self.exploration = self.planner.begin(iteration, steps, groups_training, moment, tail)

    def resume(
        self,
        groups: list[GroupPlan],
        tail: int,
        iteration: int,
        groups_training: int,
        moment: Moment,
        results: Mapping[str, Scores | None],
    ) -> None:
        """Training begins again after a restart: go on with what was asked for and scored.

        Args:
            results: by request id: scores, or None while there are none.
        """
        if self.mode != "bandit":
            return
        self._begin(groups, iteration, groups_training, moment, tail)
        assert self.exploration is not None
        for group in groups:
            for member in group.members:
                request_id = self._plan.explore_id(group, member, iteration)
                self.exploration.added(request_id, group.prompt_id, moment.now)
                scores = results.get(request_id)
                if scores is not None:
                    self.exploration.scored(request_id, scores[self._plan.train_reward])

    def more(self, moment: Moment) -> list[Request]:
        """Return the candidates that are worth adding now; they are in their groups already."""
        if self.exploration is None:
            return []
        added = []
        for prompt_id in self.planner.next(self.exploration, moment):
            group = self._groups[prompt_id]
            member = self._plan.next_candidate(group, self._iteration)
            request = self._plan.exploration(
                group, member, self._iteration, self._iteration - 1, self.exploration.plan.tail
            )
            self.exploration.added(request.request_id, prompt_id, moment.now)
            added.append(request)
        return added

    def scored(
        self, request_id: str, scores: Scores | None, agent_id: str, gpu_s: float, now: float
    ) -> None:
        """A candidate has its scores; None: it failed for good."""
        if self.exploration is not None:
            reward = scores[self._plan.train_reward] if scores else None
            self.planner.scored(self.exploration, request_id, reward, agent_id, gpu_s, now)

    def trained(self, moment: Moment) -> dict[str, float]:
        """Training ended: whatever is not scored now comes too late."""
        if self.exploration is None:
            return {}
        exploration, self.exploration = self.exploration, None
        missed = self.planner.trained(exploration, moment)
        figures = {
            "planner.overran": float(missed),
            "planner.margin": self.planner.state.margin.deviations,
            "planner.steps": exploration.plan.steps,
        }
        if exploration.plan.candidates is not None:
            figures["planner.candidates"] = float(exploration.plan.candidates)
        return figures

    def learn(self, outcomes: list[GroupOutcome], tail: int | None) -> dict[str, float]:
        return self.planner.learn(outcomes, tail)
