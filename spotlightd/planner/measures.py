"""What an iteration is measured by, from its groups and their scores."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from spotlightd.planner.estimators import Running
from spotlightd.planner.outcomes import GroupOutcome
from spotlightd.planner.plan import GroupPlan
from spotlightd.planner.staleness import StalenessPair, summarise_staleness
from spotlightd.wire.training import Trained

Scores = Mapping[str, float]
PER_RANDOM = 0.8


def means(prefix: str, scores: Sequence[Scores]) -> dict[str, float]:
    """Return `<prefix>.<reward>`: the mean of each reward that every row has."""
    names = sorted({name for row in scores for name in row})
    return {
        f"{prefix}.{name}": sum(row[name] for row in scores) / len(scores)
        for name in names
        if all(name in row for row in scores)
    }


def rollout_metrics(
    groups: Iterable[GroupPlan], fresh: Mapping[tuple[str, int], Scores]
) -> dict[str, float]:
    """Measure an iteration's rollouts.

    Args:
        groups: the plan, with the scores that exploration gave.
        fresh: regenerated scores by (prompt id, seed).

    Selected groups are extreme by design: only random seeds estimate the policy's mean reward
    (`control.*`), and only control seeds the staleness of scores.
    """
    groups = list(groups)
    everything: list[Scores] = []
    random_seeds: list[Scores] = []
    pairs: list[StalenessPair] = []
    for group in groups:
        for member in group.members:
            scores = fresh.get((group.prompt_id, member.seed))
            if scores is None:
                continue
            everything.append(scores)
            if member.role in ("control", "random"):
                random_seeds.append(scores)
            if member.role == "control" and member.stale_scores:
                pairs.append(StalenessPair(group.prompt_id, member.stale_scores, scores))
    explored = sum(1 for g in groups for m in g.members if m.stale_scores is not None)
    return {
        **means("rollout", everything),
        **means("control", random_seeds),
        **summarise_staleness(pairs),
        "explored": float(explored),
        "informative_groups": float(sum(group.informative for group in groups)),
    }


def group_outcomes(
    groups: Iterable[GroupPlan],
    fresh: Mapping[tuple[str, int], Scores],
    rank_by: str,
    train: str,
) -> list[GroupOutcome]:
    """Return each regenerated group beside its scores from exploration, for the planner."""
    outcomes = []
    for group in groups:
        members = [m for m in group.members if (group.prompt_id, m.seed) in fresh]
        if not members:
            continue
        outcomes.append(
            GroupOutcome(
                group.prompt_id,
                group.scored,
                tuple(m.stale_scores[rank_by] if m.stale_scores else None for m in members),
                tuple(fresh[group.prompt_id, m.seed][train] for m in members),
                tuple(m.role == "control" for m in members),
                group.rank_spread,
                group.reward_spread,
            )
        )
    return outcomes


def groups_with_spread(fresh: Mapping[tuple[str, int], Scores], reward: str) -> int:
    """Count the prompts whose regenerated rewards differ, from scores by (prompt id, seed)."""
    rewards: dict[str, set[float]] = {}
    for (prompt_id, _), scores in fresh.items():
        rewards.setdefault(prompt_id, set()).add(scores[reward])
    return sum(len(values) > 1 for values in rewards.values())


class Norms(Struct):
    """Gradient norms of iterations with random seeds: what selected ones are compared with."""

    random: Running = field(default_factory=Running)

    def measure(self, figures: Mapping[str, float], selected: bool) -> dict[str, float]:
        """Return `planner.grad_norm_ratio` of a selected iteration, where it can be told."""
        norm = figures.get("train.grad_norm")
        if norm is None:
            return {}
        if not selected:
            self.random.observe(norm, PER_RANDOM)
            return {}
        return {"planner.grad_norm_ratio": norm / self.random.mean} if self.random.mean else {}


def training_metrics(message: Trained, explored: int) -> dict[str, float]:
    """Take over the trainer's measurements; `explored` seeds were scored meanwhile."""
    differences = {
        f"log_prob_difference.{row.producer}": row.mean_abs_difference
        for row in message.differences
    }
    return {
        **{f"train.{name}": value for name, value in message.metrics.items()},
        **differences,
        "train.seconds": message.seconds,
        "train.clip_range": message.clip_range,
        "explored_in_training": float(explored),
    }
