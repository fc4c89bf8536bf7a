"""The iterations of a run, as a pure state machine: events in, decisions with reasons out.

    starting -> evaluate -> rollout -> train -> rollout -> ... -> evaluate -> finished
                               ^         |  (explore for the next iteration meanwhile)
                               '---------'  Trained: stop exploring, select seeds

Gradient rollouts carry exactly the policy version that is being trained. Exploration carries the
version before it (staleness 1), ranks seeds and is otherwise thrown away. It is anytime: seeds
are selected from whatever was scored when training ends. In mode `critical_path` a phase `explore`
precedes each rollout instead, with the version that will train.
"""

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from spotlightd.planner.decisions import (
    AddRequests,
    Decision,
    Phase,
    PhaseBegins,
    Planned,
    Record,
    Reopen,
    StartTraining,
    StopRequests,
)
from spotlightd.planner.early_stop import Watch
from spotlightd.planner.exploration import PlannerState
from spotlightd.planner.explorer import Explorer
from spotlightd.planner.measures import (
    Norms,
    group_outcomes,
    groups_with_spread,
    means,
    rollout_metrics,
    training_metrics,
)
from spotlightd.planner.plan import CyclePlan, GroupPlan
from spotlightd.planner.timing import Moment
from spotlightd.planner.training import CommittedResult, make_train, train_metrics
from spotlightd.wire.sampling import Request
from spotlightd.wire.training import Damaged, Trained


class CycleState(msgspec.Struct):
    """All that a restart needs, beside the requests and results of the current iteration."""

    phase: Phase = "starting"
    iteration: int = 0
    """The iteration that rolls out or trains; equals the policy version."""
    groups: list[GroupPlan] = msgspec.field(default_factory=list)
    """Plan of the iteration's rollout groups."""
    exploring: list[GroupPlan] = msgspec.field(default_factory=list)
    """Plan of the next iteration's exploration."""
    tail: int | None = None
    """ODE steps after the window in that exploration."""
    explored_tail: int | None = None
    """The same for the exploration that chose `groups`; None where their seeds are random."""
    reason: str = "nothing is explored"
    """The planner's, for its latest plan."""
    planner: PlannerState = msgspec.field(default_factory=PlannerState)
    norms: Norms = msgspec.field(default_factory=Norms)
    watch: Watch = msgspec.field(default_factory=Watch)


class Cycle:
    """Drives a run through its iterations.

    Invariants: rollouts of iteration k carry version k; `results` holds only results of requests
    in `requests`; exploration requests carry version k - 1.
    """

    def __init__(self, plan: CyclePlan, state: CycleState | None = None) -> None:
        self.plan = plan
        self.state = state or CycleState()
        self.explorer = Explorer(plan, self.state.planner)
        self.moment = Moment()
        """The clock and the fleet; whoever brings an event sets it first."""
        self.requests: dict[str, Request] = {}
        self.results: dict[str, CommittedResult] = {}
        self.failed: set[str] = set()
        self._waiting: set[str] | None = None
        """What the phase still waits for; None: to be counted anew."""

    @property
    def complete(self) -> bool:
        """Nothing is left to do; a finished run goes on when it is given more iterations."""
        over = self.state.iteration >= self.plan.iterations
        over |= self.state.watch.ended(self.plan.config.run)
        return over and self.state.phase == "finished"

    @property
    def planned_iteration(self) -> int:
        """The iteration that the latest plan is for."""
        ahead = self.state.phase == "train" and not self.explorer.before_rollout
        return self.state.iteration + ahead

    # --- events -------------------------------------------------------------------------------

    def trainer_ready(self, version: int) -> list[Decision]:
        """The trainer holds `version`: begin, or go on where the run stood."""
        if self.state.phase == "starting":
            return self._begin_evaluation("before the first update")
        if self.state.phase == "finished" and not self.complete:
            return self._begin_rollout()
        if self.state.phase == "train" and version == self.state.iteration:
            self._resume_exploring()
            return [self._start_training("the trainer came back and repeats the update")]
        return []

    def restore(self, requests: Iterable[Request], results: Iterable[CommittedResult]) -> None:
        """Take up the stored requests and results of the current iteration after a restart."""
        self.requests.update({r.request_id: r for r in requests})
        self.results.update({r.request_id: r for r in results if r.request_id in self.requests})
        self._waiting = None

    def resume(self) -> list[Decision]:
        """After `restore`: the phase may have been complete already."""
        return self._advance_if_complete()

    def committed(self, result: CommittedResult) -> list[Decision]:
        """A result is durable."""
        if result.request_id not in self.requests:
            return []
        self.results[result.request_id] = result
        if self._waiting is not None:
            self._waiting.discard(result.request_id)
        if self.requests[result.request_id].kind == "explore":
            self.explorer.scored(
                result.request_id, result.scores, result.producer, result.gpu_s, self.moment.now
            )
            return self._explore_more() or self._advance_if_complete()
        return self._advance_if_complete()

    def tick(self) -> list[Decision]:
        """Time passed, or the fleet changed."""
        if self.state.phase == "explore" and not self.moment.agents:
            return self._select("no spot GPU is left to explore with")
        return self._explore_more()

    def given_up(self, request_id: str) -> list[Decision]:
        """A request failed for good. A rollout is replaced by a fresh seed of its prompt."""
        request = self.requests.get(request_id)
        if request is None:
            return []
        self.failed.add(request_id)
        self._waiting = None
        if request.kind == "explore":
            self.explorer.scored(request_id, None, "", 0.0, self.moment.now)
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
        state.phase, self._waiting = "rollout", None
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
        figures = training_metrics(message, self._explored()) | self.explorer.trained(self.moment)
        figures |= self.state.norms.measure(figures, self.state.explored_tail is not None)
        decisions: list[Decision] = [Record(self.state.iteration, figures)]
        decisions += self._stop_exploring("training ended: select from what finished")
        self.state.iteration += 1
        if self.state.iteration >= self.plan.iterations:
            return decisions + self._begin_evaluation("after the last update")
        if self.plan.evaluates_before(self.state.iteration):
            return decisions + self._begin_evaluation("every n iterations")
        return decisions + self._begin_rollout()

    def _stop_exploring(self, reason: str) -> list[Decision]:
        unfinished = [
            r.request_id
            for r in self.requests.values()
            if r.kind == "explore" and r.request_id not in self.results
        ]
        return [StopRequests(unfinished, reason)] if unfinished else []

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
        """Roll out, after exploring first where that is on the critical path."""
        state = self.state
        if not self.explorer.before_rollout or not self.moment.agents:
            return self._roll_out()
        begun = self.explorer.begin(state.iteration, 0, self.moment)
        state.phase, state.exploring, state.tail = "explore", begun.groups, begun.tail
        state.reason = begun.reason
        self._expect(begun.requests)
        return [
            PhaseBegins("explore", state.iteration, begun.reason),
            AddRequests(begun.requests, begun.reason),
        ]

    def _select(self, reason: str) -> list[Decision]:
        return [*self._stop_exploring(reason), *self._roll_out()]

    def _roll_out(self) -> list[Decision]:
        state = self.state
        explored = {
            r.request_id: self.results.get(r.request_id)
            for r in self.requests.values()
            if r.kind == "explore"
        }
        scores = {i: (r.scores if r else None) for i, r in explored.items()}
        state.groups = self.plan.select_groups(state.iteration, state.exploring, scores)
        state.explored_tail = state.tail if any(scores.values()) else None
        state.exploring, state.tail = [], None
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
        state, metrics = self.state, self._rollout_metrics()
        state.phase = "train"
        state.watch.trained(metrics, self.plan.train_reward)
        reason = "every rollout of the iteration is committed"
        start = self._start_training(reason)
        decisions: list[Decision] = [
            PhaseBegins("train", state.iteration, reason),
            Record(state.iteration, metrics | train_metrics(start.message)),
            start,
        ]
        if state.exploring:
            # Damaged trajectories were produced again meanwhile.
            self._resume_exploring()
        elif (
            self.explorer.mode in ("fixed", "bandit") and state.iteration + 1 < self.plan.iterations
        ):
            begun = self.explorer.begin(
                state.iteration + 1, self._groups_with_spread(), self.moment
            )
            state.exploring, state.tail, state.reason = begun.groups, begun.tail, begun.reason
            decisions.append(Planned(state.iteration + 1, begun.reason))
            decisions += self._add_explorations(begun.requests)
        return decisions

    def _resume_exploring(self) -> None:
        """Training begins again: go on with what was asked for and scored."""
        state = self.state
        scores = {i: r.scores for i, r in self.results.items()}
        self.explorer.resume(
            state.exploring,
            state.tail or 0,
            state.iteration + 1,
            self._groups_with_spread(),
            self.moment,
            scores,
        )
        for request_id in self.failed:
            self.explorer.scored(request_id, None, "", 0.0, self.moment.now)

    def _explore_more(self) -> list[Decision]:
        if self.state.phase != "train":
            return []
        requests = self.explorer.more(self.moment)
        exploration = self.explorer.exploration
        if exploration is not None:
            self.state.reason = exploration.plan.reason
        return self._add_explorations(requests)

    def _add_explorations(self, requests: list[Request]) -> list[Decision]:
        self.requests.update({r.request_id: r for r in requests})
        reason = f"explore seeds of iteration {self.state.iteration + 1} with stale weights"
        return [AddRequests(requests, reason)] if requests else []

    def _finish_evaluation(self) -> list[Decision]:
        state = self.state
        metrics = self._evaluation_metrics()
        stop = state.watch.evaluated(state.iteration, metrics, self.plan.config.run)
        if not stop and state.iteration < self.plan.iterations:
            return [Record(state.iteration, metrics), *self._begin_rollout()]
        state.phase, reason = "finished", stop or "evaluated after the last"
        return [Record(state.iteration, metrics), PhaseBegins("finished", state.iteration, reason)]

    def _advance_if_complete(self) -> list[Decision]:
        kind = self.state.phase
        if kind not in ("evaluate", "explore", "rollout"):
            return []
        if self._waiting is None:
            asked = {i for i, r in self.requests.items() if r.kind == kind}
            self._waiting = asked - self.results.keys() - self.failed
        if self._waiting:
            return []
        if kind == "explore":
            return self._select("every candidate is scored")
        return self._finish_evaluation() if kind == "evaluate" else self._begin_training()

    def _expect(self, requests: Iterable[Request], keep_kind: str = "") -> None:
        """Replace the requests of the phase before; exploration may outlive an evaluation."""
        kept = {i: r for i, r in self.requests.items() if r.kind == keep_kind}
        self.requests = kept | {r.request_id: r for r in requests}
        self._waiting = None
        self.results = {i: r for i, r in self.results.items() if i in self.requests}
        self.failed = {i for i in self.failed if i in self.requests}

    # --- what is measured ---------------------------------------------------------------------

    def _start_training(self, reason: str) -> StartTraining:
        state = self.state
        message = make_train(self.plan, state.groups, self._rollouts(), state.iteration)
        return StartTraining(message, reason)

    def _rollouts(self) -> dict[str, list[tuple[Request, CommittedResult]]]:
        """Return the committed rollouts of each prompt."""
        found: dict[str, list[tuple[Request, CommittedResult]]] = defaultdict(list)
        for request in self.requests.values():
            if request.kind == "rollout" and request.request_id in self.results:
                found[request.prompt_id].append((request, self.results[request.request_id]))
        return found

    def _fresh(self) -> dict[tuple[str, int], dict[str, float]]:
        """Regenerated scores by (prompt, seed)."""
        found = self._rollouts().items()
        return {(p, request.seed): row.scores for p, rows in found for request, row in rows}

    def _rollout_metrics(self) -> dict[str, float]:
        """Measure the rollouts; the planner learns from them."""
        fresh, section = self._fresh(), self.plan.config.planner
        outcomes = group_outcomes(self.state.groups, fresh, section.rank_by, self.plan.train_reward)
        learned = {}
        if not self.state.exploring:  # else these groups were learned from already
            learned = self.explorer.learn(outcomes, self.state.explored_tail)
        return rollout_metrics(self.state.groups, fresh) | learned

    def _groups_with_spread(self) -> int:
        return groups_with_spread(self._fresh(), self.plan.train_reward)

    def _explored(self) -> int:
        return sum(1 for i, r in self.requests.items() if r.kind == "explore" and i in self.results)

    def _evaluation_metrics(self) -> dict[str, float]:
        scores = [
            self.results[r.request_id].scores
            for r in self.requests.values()
            if r.kind == "evaluate" and r.request_id in self.results
        ]
        return means("held_out", scores) | {"held_out.failed": float(len(self.failed))}
