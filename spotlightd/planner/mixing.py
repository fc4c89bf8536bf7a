"""Training reward of a mix: each reward normalised within its group first, then weighted.

Summed raw, the reward with the widest spread would be all that trains, and a harder one beside it
would stall.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev

STD_FLOOR = 1e-4


def group_mix(rows: Sequence[Mapping[str, float]], weights: Mapping[str, float]) -> list[float]:
    """Return the mixed reward of each rollout of one group.

    A reward that is equal for the whole group adds nothing to any.
    """
    mixed = [0.0] * len(rows)
    for name, weight in weights.items():
        values = [row[name] for row in rows]
        mean, spread = fmean(values), pstdev(values)
        for index, value in enumerate(values):
            mixed[index] += weight * (value - mean) / (spread + STD_FLOOR)
    return mixed
