"""The iterations of a run, as a pure state machine: events in, decisions with reasons out.

    starting -> evaluate -> rollout -> train -> rollout -> ... -> evaluate -> finished
                               ^         |  (explore for the next iteration meanwhile)
                               '---------'  Trained: stop exploring, select seeds

Gradient rollouts carry exactly the policy version that is being trained. Exploration carries the
version before it (staleness 1), ranks seeds and is otherwise thrown away. It is anytime: seeds
are selected from whatever was scored when training ends.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from spotlightd.planner.measures import means, rollout_metrics, training_metrics
from spotlightd.planner.plan import CyclePlan, GroupPlan
from spotlightd.wire.sampling import Request
from spotlightd.wire.training import Damaged, Train, Trained, TrainGroup, TrainSample

Phase = Literal["starting", "evaluate", "rollout", "train", "finished"]


class CommittedResult(msgspec.Struct, frozen=True):
    """A result as the store holds it."""

    request_id: str
    scores: dict[str, float]
    trajectory: str | None
    """Blob digest; None for exploration and evaluation."""
    producer: str


class CycleState(msgspec.Struct):
    """All that a restart needs, beside the requests and results of the current iteration."""

    phase: Phase = "starting"
    iteration: int = 0
    """The iteration that rolls out or trains; equals the policy version."""
    groups: list[GroupPlan] = msgspec.field(default_factory=list)
    """Plan of the iteration's rollout groups."""
    exploring: list[GroupPlan] = msgspec.field(default_factory=list)
    """Plan of the next iteration's exploration."""


# --- decisions --------------------------------------------------------------------------------


@dataclass(frozen=True)
class AddRequests:
    requests: list[Request]
    reason: str


@dataclass(frozen=True)
class StopRequests:
    request_ids: list[str]
    reason: str


@dataclass(frozen=True)
class Reopen:
    """Forget committed results: they cannot be read back, and are produced again."""

    request_ids: list[str]
    reason: str


@dataclass(frozen=True)
class StartTraining:
    message: Train
    reason: str


@dataclass(frozen=True)
class Record:
    """Metrics of an iteration, to be stored."""

    iteration: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class PhaseBegins:
    phase: Phase
    iteration: int
    reason: str


Decision = AddRequests | StopRequests | Reopen | StartTraining | Record | PhaseBegins


class Cycle:
    """Drives a run through its iterations.

    Invariants: rollouts of iteration k carry version k; `results` holds only results of requests
    in `requests`; exploration requests carry version k - 1.
    """

    def __init__(self, plan: CyclePlan, state: CycleState | None = None) -> None:
        self.plan = plan
        self.state = state or CycleState()
        self.requests: dict[str, Request] = {}
        self.results: dict[str, CommittedResult] = {}
        self.failed: set[str] = set()

    @property
    def complete(self) -> bool:
        """Nothing is left to do; a finished run goes on when it is given more iterations."""
        return self.state.phase == "finished" and self.state.iteration >= self.plan.iterations

    # --- events -------------------------------------------------------------------------------

    def trainer_ready(self, version: int) -> list[Decision]:
        """The trainer holds `version`: begin, or go on where the run stood."""
        if self.state.phase == "starting":
            return self._begin_evaluation("before the first update")
        if self.state.phase == "finished" and not self.complete:
            return self._begin_rollout()
        if self.state.phase == "train" and version == self.state.iteration:
            return [self._start_training("the trainer came back and repeats the update")]
        return []

    def restore(self, requests: Iterable[Request], results: Iterable[CommittedResult]) -> None:
        """Take up the stored requests and results of the current iteration after a restart."""
        self.requests.update({r.request_id: r for r in requests})
        self.results.update({r.request_id: r for r in results if r.request_id in self.requests})

    def resume(self) -> list[Decision]:
        """After `restore`: the phase may have been complete already."""
        return self._advance_if_complete()

    def committed(self, result: CommittedResult) -> list[Decision]:
        """A result is durable."""
        if result.request_id not in self.requests:
            return []
        self.results[result.request_id] = result
        return self._advance_if_complete()

    def given_up(self, request_id: str) -> list[Decision]:
        """A request failed for good. A rollout is replaced by a fresh seed of its prompt."""
        request = self.requests.get(request_id)
        if request is None:
            return []
        self.failed.add(request_id)
        if request.kind != "rollout" or self.state.phase != "rollout":
            return self._advance_if_complete()
        group = next(g for g in self.state.groups if g.prompt_id == request.prompt_id)
        replacement = self.plan.replacement(group, self.state.iteration)
        self.requests[replacement.request_id] = replacement
        return [AddRequests([replacement], f"{request_id} failed for good: a fresh seed fills up")]

    def damaged(self, message: Damaged) -> list[Decision]:
        """Committed trajectories cannot be read back: roll them out again, then train."""
        state = self.state
        again = [self.requests[r] for r in message.request_ids if r in self.results]
        if state.phase != "train" or message.iteration != state.iteration or not again:
            return []
        for request in again:
            del self.results[request.request_id]
        state.phase = "rollout"
        reason = f"{len(again)} trajectories are damaged"
        return [
            Reopen([request.request_id for request in again], reason),
            PhaseBegins("rollout", state.iteration, reason),
            AddRequests(again, f"roll out version {state.iteration} again: {reason}"),
        ]

    def trained(self, message: Trained) -> list[Decision]:
        """The trainer has made the next version."""
        if self.state.phase != "train" or message.policy_version != self.state.iteration + 1:
            return []
        finished = Record(self.state.iteration, training_metrics(message, self._explored()))
        unfinished = [
            r.request_id
            for r in self.requests.values()
            if r.kind == "explore" and r.request_id not in self.results
        ]
        decisions: list[Decision] = [finished]
        if unfinished:
            decisions.append(StopRequests(unfinished, "training ended: select from what finished"))
        self.state.iteration += 1
        if self.state.iteration >= self.plan.iterations:
            return decisions + self._begin_evaluation("after the last update")
        if self.plan.evaluates_before(self.state.iteration):
            return decisions + self._begin_evaluation("every n iterations")
        return decisions + self._begin_rollout()

    # --- phases -------------------------------------------------------------------------------

    def _begin_evaluation(self, reason: str) -> list[Decision]:
        self.state.phase = "evaluate"
        requests = self.plan.evaluation(self.state.iteration)
        self._expect(requests, keep_kind="explore")
        return [
            PhaseBegins("evaluate", self.state.iteration, reason),
            AddRequests(requests, f"evaluate version {self.state.iteration} {reason}"),
        ]

    def _begin_rollout(self) -> list[Decision]:
        state = self.state
        explored = {
            r.request_id: self.results.get(r.request_id)
            for r in self.requests.values()
            if r.kind == "explore"
        }
        scores = {i: (r.scores if r else None) for i, r in explored.items()}
        state.groups = self.plan.select_groups(state.iteration, state.exploring, scores)
        state.exploring = []
        state.phase = "rollout"
        requests = self.plan.rollouts(state.groups, state.iteration)
        self._expect(requests)
        selected = sum(1 for g in state.groups for m in g.members if m.role in ("low", "high"))
        reason = f"{selected} of {len(requests)} seeds chosen by exploration"
        return [
            PhaseBegins("rollout", state.iteration, reason),
            AddRequests(requests, f"roll out version {state.iteration}: {reason}"),
        ]

    def _begin_training(self) -> list[Decision]:
        state = self.state
        state.phase = "train"
        decisions: list[Decision] = [
            PhaseBegins("train", state.iteration, "every rollout of the iteration is committed"),
            Record(state.iteration, self._rollout_metrics()),
            self._start_training("every rollout of the iteration is committed"),
        ]
        if state.iteration + 1 < self.plan.iterations:
            state.exploring = self.plan.exploration_groups(state.iteration + 1)
            requests = self.plan.explorations(state.exploring, state.iteration + 1)
            self.requests.update({r.request_id: r for r in requests})
            if requests:
                reason = f"explore seeds of iteration {state.iteration + 1} with stale weights"
                decisions.append(AddRequests(requests, reason))
        return decisions

    def _finish_evaluation(self) -> list[Decision]:
        state = self.state
        record = Record(state.iteration, self._evaluation_metrics())
        if state.iteration >= self.plan.iterations:
            state.phase = "finished"
            return [record, PhaseBegins("finished", state.iteration, "evaluated after the last")]
        return [record, *self._begin_rollout()]

    def _advance_if_complete(self) -> list[Decision]:
        kind = self.state.phase
        if kind not in ("evaluate", "rollout"):
            return []
        waiting = [
            r.request_id
            for r in self.requests.values()
            if r.kind == kind
            and r.request_id not in self.results
            and r.request_id not in self.failed
        ]
        if waiting:
            return []
        return self._finish_evaluation() if kind == "evaluate" else self._begin_training()

    def _expect(self, requests: Iterable[Request], keep_kind: str = "") -> None:
        """Replace the requests of the phase before; exploration may outlive an evaluation."""
        kept = {i: r for i, r in self.requests.items() if r.kind == keep_kind}
        self.requests = kept | {r.request_id: r for r in requests}
        self.results = {i: r for i, r in self.results.items() if i in self.requests}
        self.failed = {i for i in self.failed if i in self.requests}

    # --- what is measured ---------------------------------------------------------------------

    def _start_training(self, reason: str) -> StartTraining:
        groups = []
        for group in self.state.groups:
            samples = [
                self._train_sample(request, result)
                for request, result in self._group_results(group)
                if result.trajectory is not None
            ]
            if samples:
                request = self.requests[samples[0].request_id]
                groups.append(TrainGroup(group.prompt_id, request, tuple(samples)))
        message = Train(self.state.iteration, self.state.iteration, tuple(groups))
        return StartTraining(message, reason)

    def _train_sample(self, request: Request, result: CommittedResult) -> TrainSample:
        return TrainSample(
            request_id=request.request_id,
            seed=request.seed,
            reward=result.scores[self.plan.train_reward],
            trajectory=result.trajectory or "",
            producer=result.producer,
            control=self.plan.role_of(self.state.groups, request) == "control",
        )

    def _group_results(self, group: GroupPlan) -> list[tuple[Request, CommittedResult]]:
        return [
            (request, self.results[request.request_id])
            for request in self.requests.values()
            if request.kind == "rollout"
            and request.prompt_id == group.prompt_id
            and request.request_id in self.results
        ]

    def _rollout_metrics(self) -> dict[str, float]:
        fresh = {
            (request.prompt_id, request.seed): result.scores
            for group in self.state.groups
            for request, result in self._group_results(group)
        }
        return rollout_metrics(self.state.groups, fresh)

    def _explored(self) -> int:
        return sum(1 for i, r in self.requests.items() if r.kind == "explore" and i in self.results)

    def _evaluation_metrics(self) -> dict[str, float]:
        scores = [
            self.results[r.request_id].scores
            for r in self.requests.values()
            if r.kind == "evaluate" and r.request_id in self.results
        ]
        return means("held_out", scores) | {"held_out.failed": float(len(self.failed))}
