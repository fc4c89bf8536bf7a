"""How well scores from stale weights keep the order of fresh ones (rank fidelity).

Measured on control seeds only: they were explored and regenerated like the others but drawn
before any score was known, so the sample is not selected (NUMERICS: selecting seeds).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spotlightd.planner.correlation import spearman


@dataclass(frozen=True)
class StalenessPair:
    prompt_id: str
    stale: Mapping[str, float]
    """Scores by reward name, with the weights of one version before."""
    fresh: Mapping[str, float]


def summarise_staleness(pairs: Sequence[StalenessPair]) -> dict[str, float]:
    """Return `staleness.spearman.<reward>` and `staleness.pairs`.

    Ranks are compared within each prompt, since prompts differ in difficulty and would
    correlate by themselves; prompts count by their number of pairs. Prompts without spread on a
    side have no ranking to keep and are left out.
    """
    by_prompt: dict[str, list[StalenessPair]] = defaultdict(list)
    for pair in pairs:
        by_prompt[pair.prompt_id].append(pair)
    names = sorted({name for pair in pairs for name in pair.stale.keys() & pair.fresh.keys()})
    summary: dict[str, float] = {"staleness.pairs": float(len(pairs))}
    for name in names:
        weighted: list[tuple[float, int]] = []
        for rows in by_prompt.values():
            both = [
                (r.stale[name], r.fresh[name]) for r in rows if name in r.stale and name in r.fresh
            ]
            rho = spearman([a for a, _ in both], [b for _, b in both])
            if rho is not None:
                weighted.append((rho, len(both)))
        total = sum(count for _, count in weighted)
        if total:
            summary[f"staleness.spearman.{name}"] = sum(r * n for r, n in weighted) / total
    return summary
