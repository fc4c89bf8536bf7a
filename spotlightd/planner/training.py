"""From committed rollouts to the message that trains: which of a group's rollouts it holds.

All K rollouts of a group are regenerated with the weights that train, so their rewards are exact.
Where fewer than K train, it is the subset of largest variance (PODS, arXiv 2504.13818): with
advantages of one scale, its gradient says nearly what the whole group's does, in a fraction of the
training time.
"""

from collections.abc import Container, Mapping, Sequence
from statistics import fmean, pvariance

import msgspec

from spotlightd.planner.plan import CyclePlan, GroupPlan
from spotlightd.planner.seeds import keyed_hash
from spotlightd.planner.selection import most_contrasting
from spotlightd.wire.sampling import Request
from spotlightd.wire.training import Train, TrainGroup, TrainSample


class CommittedResult(msgspec.Struct, frozen=True):
    """A result as the store holds it."""

    request_id: str
    scores: dict[str, float]
    trajectory: str | None
    """Blob digest; None for exploration and evaluation."""
    producer: str
    gpu_s: float = 0.0
    """GPU-seconds that it took; 0: not known (any more)."""


Rollouts = Mapping[str, Sequence[tuple[Request, CommittedResult]]]
"""Committed rollouts by prompt id."""


def make_train(
    plan: CyclePlan, groups: Sequence[GroupPlan], rollouts: Rollouts, iteration: int
) -> Train:
    """Return the iteration's message to the trainer; groups without a rollout are left out."""
    size = plan.config.planner.train_size
    made = []
    for group in groups:
        rows = [row for row in rollouts.get(group.prompt_id, ()) if row[1].trajectory is not None]
        if not rows:
            continue
        # Rewards of a mix are relative to the whole group, so they come before the choice.
        rewards = plan.train_rewards([result.scores for _, result in rows])
        seeds = [request.seed for request, _ in rows]
        tie_key = keyed_hash("train", plan.config.run.seed, iteration, group.prompt_id)
        chosen = most_contrasting(rewards, seeds, size, tie_key)
        controls = {member.seed for member in group.members if member.role == "control"}
        samples = tuple(_sample(*rows[place], rewards[place], controls) for place in chosen)
        made.append(TrainGroup(group.prompt_id, rows[0][0], samples))
    return Train(iteration, iteration, tuple(made))


def _sample(
    request: Request, result: CommittedResult, reward: float, controls: Container[int]
) -> TrainSample:
    return TrainSample(
        request_id=request.request_id,
        seed=request.seed,
        reward=reward,
        trajectory=result.trajectory or "",
        producer=result.producer,
        control=request.seed in controls,
    )


def train_metrics(message: Train) -> dict[str, float]:
    """Return how many rollouts train, and the mean variance of a group's rewards among them."""
    groups = [[sample.reward for sample in group.samples] for group in message.groups]
    if not groups:
        return {}
    return {
        "planner.trained": float(sum(map(len, groups))),
        "planner.variance_trained": fmean(map(pvariance, groups)),
    }
