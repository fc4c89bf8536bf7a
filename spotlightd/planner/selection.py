"""Which explored seeds are regenerated, and which regenerated rollouts train.

Both times it is the subset of largest reward variance; of explored seeds, beside control seeds.

The optimum over subsets of size K is always the `a` lowest and the `K - a` highest rewards for
some `a` (PODS, arXiv 2504.13818): variance is convex in each element, so an inner pick can be
moved outwards without loss. So only the K lowest and the K highest are in question, and prefix
sums make the scan over `a` linear.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Role = Literal["low", "high", "random", "control"]
GOLDEN, MASK = 0x9E3779B97F4A7C15, 2**64 - 1
GOLDEN_INVERSE = pow(GOLDEN, -1, 2**64)


@dataclass(frozen=True)
class Candidate:
    """A seed with its score from exploration; None where exploration did not finish or failed."""

    seed: int
    score: float | None


@dataclass(frozen=True)
class Selected:
    seed: int
    role: Role
    """`control`: drawn before any score was known; `random`: filled up for want of scores."""
    stale_score: float | None


def max_variance_split(scores: Sequence[float], size: int) -> tuple[int, float]:
    """Return (a, variance) of the best choice: the `a` lowest and `size - a` highest scores.

    Args:
        scores: ascending.
        size: how many to keep, at most len(scores).

    Of equally good splits the most even one wins.
    """
    count = len(scores)
    centre = scores[count // 2]
    sums, squares = [0.0], [0.0]
    for score in scores:
        sums.append(sums[-1] + (score - centre))
        squares.append(squares[-1] + (score - centre) ** 2)
    best = (-math.inf, 0.0)
    best_low = 0
    for low in range(size + 1):
        high_start = count - (size - low)
        total = sums[low] + sums[count] - sums[high_start]
        square = squares[low] + squares[count] - squares[high_start]
        variance = max(square / size - (total / size) ** 2, 0.0)
        # Rounded, so that float dust does not decide between equal splits.
        key = (round(variance, 12), -abs(low - size / 2))
        if key > best:
            best, best_low = key, low
    return best_low, best[0]


def select_seeds(
    candidates: Sequence[Candidate],
    fresh: Sequence[int],
    group_size: int,
    control_count: int,
    tie_key: int,
) -> tuple[list[Selected], bool]:
    """Choose the `group_size` seeds of one prompt that are regenerated.

    Args:
        candidates: explored seeds in derivation order; the first `control_count` are control
            seeds whatever they scored.
        fresh: unexplored seeds that fill up where too few were scored.
        group_size: K.
        control_count: K times the control fraction.
        tie_key: keys the order of equal scores (raw seeds would favour low ones).

    Returns:
        The selection, and whether the scores told the seeds apart. Where they did not, the
        seeds are as good as random and say so in their role.
    """
    controls = [Selected(c.seed, "control", c.score) for c in candidates[:control_count]]
    wanted = group_size - len(controls)
    scored = [
        (score, c.seed)
        for c in candidates[control_count:]
        if (score := c.score) is not None and math.isfinite(score)
    ]
    if len(scored) <= wanted:
        chosen = [Selected(seed, "random", score) for score, seed in sorted(scored)]
        informative = False
    else:
        chosen, informative = _most_contrasting(_contenders(scored, wanted, tie_key), wanted)
    missing = wanted - len(chosen)
    chosen += [Selected(seed, "random", None) for seed in fresh[:missing]]
    return controls + chosen, informative


def most_contrasting(
    rewards: Sequence[float], seeds: Sequence[int], size: int, tie_key: int
) -> list[int]:
    """Return which rollouts of a group spread most in their rewards: places, in order.

    Args:
        rewards, seeds: of the rollouts.
        size: how many at most; 0: all.
        tie_key: keys the order of equal rewards.

    Where all rewards are equal, any `size` of them are returned.
    """
    if not 0 < size < len(rewards):
        return list(range(len(rewards)))
    pairs = list(zip(rewards, seeds, strict=True))
    chosen, _ = _most_contrasting(_contenders(pairs, size, tie_key), size)
    kept = {choice.seed for choice in chosen}
    return [place for place, seed in enumerate(seeds) if seed in kept]


def _contenders(
    scored: Sequence[tuple[float, int]], wanted: int, tie_key: int
) -> list[tuple[float, int, int]]:
    """Return (score, tie key, seed) in order: all, or the `wanted` lowest and highest of many."""
    if len(scored) <= 2 * wanted:
        return sorted((score, _scatter(seed, tie_key), seed) for score, seed in scored)
    scores = [score for score, _ in scored]
    low_edge = heapq.nsmallest(wanted, scores)[-1]
    high_edge = heapq.nlargest(wanted, scores)[-1]
    lowest = sorted(
        (score, _scatter(seed, tie_key), seed) for score, seed in scored if score < low_edge
    )
    highest = sorted(
        (score, _scatter(seed, tie_key), seed) for score, seed in scored if score > high_edge
    )
    # Of a million passes and failures nearly all tie: their keys are compared as bare numbers.
    low_keys = [(seed ^ tie_key) * GOLDEN & MASK for score, seed in scored if score == low_edge]
    high_keys = (
        low_keys
        if high_edge == low_edge
        else [(seed ^ tie_key) * GOLDEN & MASK for score, seed in scored if score == high_edge]
    )
    low_ties = heapq.nsmallest(wanted - len(lowest), low_keys)
    high_ties = heapq.nlargest(wanted - len(highest), high_keys)[::-1]
    return [
        *lowest,
        *((low_edge, key, _gather(key, tie_key)) for key in low_ties),
        *((high_edge, key, _gather(key, tie_key)) for key in high_ties),
        *highest,
    ]


def _scatter(seed: int, tie_key: int) -> int:
    """Return the seed's place among equal scores: a bijection of 64 bits, keyed.

    Fibonacci hashing (Knuth, The Art of Computer Programming, 6.4).
    """
    return (seed ^ tie_key) * GOLDEN & MASK


def _gather(key: int, tie_key: int) -> int:
    """Return the seed that `_scatter` sent to `key`."""
    return (key * GOLDEN_INVERSE & MASK) ^ tie_key


def _most_contrasting(
    scored: Sequence[tuple[float, int, int]], wanted: int
) -> tuple[list[Selected], bool]:
    low, variance = max_variance_split([score for score, _, _ in scored], wanted)
    if variance <= 1e-12:
        by_hash = sorted(scored, key=lambda item: item[1])[:wanted]
        return [Selected(seed, "random", score) for score, _, seed in by_hash], False
    lows = [Selected(seed, "low", score) for score, _, seed in scored[:low]]
    highs = [
        Selected(seed, "high", score) for score, _, seed in scored[len(scored) - (wanted - low) :]
    ]
    return lows + highs, True
