"""Spearman's rank correlation, with average ranks for ties."""

from collections.abc import Sequence


def average_ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value from 1; equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for position in range(start, end + 1):
            ranks[order[position]] = (start + end) / 2 + 1
        start = end + 1
    return ranks


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return the rank correlation in [-1, 1]; None where a side has no spread."""
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} values cannot be paired")
    if len(set(first)) < 2 or len(set(second)) < 2:
        return None
    a, b = average_ranks(first), average_ranks(second)
    mean = (len(a) + 1) / 2
    covariance = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    spread_a = sum((x - mean) ** 2 for x in a)
    spread_b = sum((y - mean) ** 2 for y in b)
    return float(covariance / (spread_a * spread_b) ** 0.5)
