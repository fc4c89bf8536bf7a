"""Which sequence-parallel degree each image gets on a VM of several workers. Pure.

Wide groups are fast but wasteful: on P workers an image advances s(P) < P times as fast as on one
(`Curve`). While there is work for everybody, degree 1 is best. In the last wave of a phase it is
not: `plan` then finds the arrangement that ends the wave soonest.

Every image always advances, so that no lease runs out: where images outnumber workers, some share
one. An arrangement stands until its first image is done, and then the next is chosen, for what is
left; `plan` searches all sequences of arrangements by branch and bound. Which image gets which rate
matters too: of three on two workers a short one may well go alone, and the long two share.

Units: an image's `left` is in denoising steps, times in steps of one image alone at degree 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

EPSILON = 1e-9
WORTH = 0.9
"""A new arrangement, with the change to it, must end the wave in at most this share of the time."""
MOST_NODES = 2_000
"""Situations that one search looks into; under a second."""
FEW = 5
"""Up to so many images every way to give them an arrangement's rates is tried; beyond, only the one
in which the longest is the fastest."""


@dataclass(frozen=True)
class Curve:
    """Speedup of one image's step by degree, over degree 1."""

    speedups: tuple[tuple[int, float], ...]
    """(degree, speedup), ascending from (1, 1.0)."""

    @staticmethod
    def of(speedups: Mapping[int, float]) -> "Curve":
        """Raises ValueError where degree 1 is missing or a speedup is no positive number."""
        if speedups.get(1) != 1.0 or not all(0 < s < float("inf") for s in speedups.values()):
            raise ValueError(f"a curve has speedup 1 at degree 1 and positive ones: {speedups}")
        return Curve(tuple(sorted(speedups.items())))

    def at(self, degree: int) -> float:
        return dict(self.speedups)[degree]

    def degrees(self, workers: int, least: int = 1) -> list[int]:
        return [degree for degree, _ in self.speedups if least <= degree <= workers]


PUBLIC_CURVE = Curve.of({1: 1.0, 2: 1.73, 4: 2.84, 8: 3.65})
"""Published for Ulysses attention on one node of eight GPUs; used until a model was measured."""


class Group(NamedTuple):
    degree: int
    images: tuple[int, ...]
    """Indexes into `left`; several only at the least degree, where they share a batch."""


class Plan(NamedTuple):
    groups: tuple[Group, ...]
    """The first arrangement: every image is in one of them."""
    makespan: float
    """Until the last image is done, if later arrangements are chosen as well."""
    exact: bool
    """Everything was tried or ruled out: nothing is better."""
    reason: str


def plan(
    left: Sequence[float], workers: int, curve: Curve, regroup: float = 0.0, least_degree: int = 1
) -> Plan:
    """Return the arrangement that ends the wave soonest.

    Args:
        left: steps that each image still needs, all above 0.
        workers: that are free for them.
        regroup: time that a change of arrangement costs.
        least_degree: where one worker cannot hold an image alone.

    Raises:
        ValueError: there is no image, or fewer workers than the least degree.
    """
    if not left or min(left) <= 0 or not curve.degrees(workers, least_degree):
        raise ValueError(
            f"images with {list(left)} steps left, {workers} workers and degrees from "
            f"{least_degree}: at least one image, and workers for one group, are needed"
        )
    order = sorted(range(len(left)), key=lambda i: -left[i])
    search = _Search(workers, curve, regroup, least_degree)
    makespan, shape, rates = search.run(tuple(left[i] for i in order))
    waiting: dict[float, list[int]] = {}
    for image, rate in zip(order, rates, strict=True):
        waiting.setdefault(rate, []).append(image)
    groups = []
    for degree, images in shape:
        members = waiting[curve.at(degree) / images]
        groups.append(Group(degree, tuple(members[:images])))
        del members[:images]
    alone = single(left, workers, curve, least_degree)
    degrees = "+".join(str(group.degree) for group in groups)
    reason = (
        f"{len(left)} images on {workers} workers: groups of {degrees} end in {makespan:.1f} "
        f"steps, degree {least_degree} alone in {alone:.1f}"
    )
    return Plan(tuple(groups), makespan, search.exact, reason)


def single(left: Sequence[float], workers: int, curve: Curve, least_degree: int = 1) -> float:
    """Return the time of the wave where groups stay at the least degree and images stay in theirs:
    the longest image goes to the group with the least to do.
    """
    loads = [0.0] * (workers // least_degree)
    for steps in sorted(left, reverse=True):
        loads[loads.index(min(loads))] += steps
    return max(loads) / curve.at(least_degree)


def until(groups: Sequence[Group], left: Sequence[float], curve: Curve) -> float:
    """Return the time of the wave if these groups stay as they are to its end."""
    times = []
    for group in groups:
        # Members of a batch slow each other until the shortest is done.
        rate, before, total = curve.at(group.degree), 0.0, 0.0
        for rank, steps in enumerate(sorted(left[i] for i in group.images)):
            total += (steps - before) * (len(group.images) - rank) / rate
            before = steps
        times.append(total)
    return max(times)


# --- the search -------------------------------------------------------------------------------

Shape = tuple[tuple[int, int], ...]
"""(degree, images) of each group, fastest first."""
Rates = tuple[float, ...]
"""Steps per unit of time, of each image."""


class _Search:
    def __init__(self, workers: int, curve: Curve, regroup: float, least: int) -> None:
        self._workers, self._curve, self._regroup, self._least = workers, curve, regroup, least
        self._fastest = max(curve.at(d) for d in curve.degrees(workers, least))
        self._best: dict[tuple[float, ...], tuple[float, bool]] = {}
        """Time from a state on, and whether that is exact or a bound that was not beaten."""
        self._nodes = 0
        self.exact = True

    def run(self, left: tuple[float, ...]) -> tuple[float, Shape, Rates]:
        """Return the makespan, and the first arrangement with each image's rate."""
        best, chosen = float("inf"), None
        for shape, rates, time, after in self._promising(left):
            rest = self._rest(after, best - time)
            if time + rest < best - EPSILON:
                best, chosen = time + rest, (shape, rates)
        assert chosen is not None
        return best, *chosen

    def _rest(self, left: tuple[float, ...], limit: float) -> float:
        """Return the least time for what is left, with the change to it; infinite from `limit`."""
        if not left:
            return 0.0
        known = self._best.get(left)
        if known is not None and (known[1] or known[0] >= limit):
            return known[0] if known[1] else float("inf")
        if self._regroup + self._bound(left) >= limit:
            return float("inf")
        self._nodes += 1
        self.exact = self.exact and self._nodes <= MOST_NODES
        best = limit
        # Beyond the budget the most promising arrangement stands for all.
        width = None if self._nodes <= MOST_NODES else 1
        for _, _, time, after in self._promising(left)[:width]:
            best = min(best, self._regroup + time + self._rest(after, best - self._regroup - time))
        found = best < limit
        self._best[left] = (best, found)
        return best if found else float("inf")

    def _promising(
        self, left: tuple[float, ...]
    ) -> list[tuple[Shape, Rates, float, tuple[float, ...]]]:
        """Return arrangements, rates, time to the first end and what is left; best bound first."""
        choices = []
        for shape, shape_rates in _shapes(len(left), self._workers, self._curve, self._least):
            matchings, complete = _matchings(left, shape_rates)
            self.exact = self.exact and complete
            for rates in matchings:
                choices.append((shape, rates, *_advance(left, rates)))
        return sorted(choices, key=lambda choice: choice[2] + self._bound(choice[3]))

    def _bound(self, left: tuple[float, ...]) -> float:
        """No arrangement does more steps at once than the best, nor one image faster."""
        if not left:
            return 0.0
        shapes = _shapes(len(left), self._workers, self._curve, self._least)
        most = max(sum(rates) for _, rates in shapes)
        fewer = _most_with_fewer(len(left), self._workers, self._curve, self._least)
        return max(sum(left) / max(most, fewer), left[0] / self._fastest)


def _matchings(left: tuple[float, ...], rates: Rates) -> tuple[list[Rates], bool]:
    """Return different ways to give `rates` to images with so much left, and whether these are all.

    Images with as much left as another are interchangeable.
    """
    if len(left) > FEW:
        return [rates], False
    found: list[Rates] = []

    def extend(given: list[float], rest: list[float]) -> None:
        if not rest:
            found.append(tuple(given))
            return
        place = len(given)
        twin = place > 0 and left[place] == left[place - 1]
        for rate in sorted(set(rest), reverse=True):
            if not twin or rate <= given[-1]:
                others = rest.copy()
                others.remove(rate)
                extend([*given, rate], others)

    extend([], list(rates))
    return found, True


def _advance(left: tuple[float, ...], rates: tuple[float, ...]) -> tuple[float, tuple[float, ...]]:
    """Go on until the first image is done: return the time, and what is left then."""
    time = min(steps / rate for steps, rate in zip(left, rates, strict=True))
    after = (round(steps - rate * time, 9) for steps, rate in zip(left, rates, strict=True))
    return time, tuple(sorted((steps for steps in after if steps > 0), reverse=True))


@lru_cache(maxsize=1024)
def _most_with_fewer(images: int, workers: int, curve: Curve, least: int) -> float:
    return max(
        (sum(r) for n in range(1, images) for _, r in _shapes(n, workers, curve, least)),
        default=0.0,
    )


@lru_cache(maxsize=1024)
def _shapes(
    images: int, workers: int, curve: Curve, least: int
) -> tuple[tuple[Shape, tuple[float, ...]], ...]:
    """Return all arrangements of so many images that no other beats for every image."""
    found: dict[tuple[float, ...], Shape] = {}
    degrees = curve.degrees(workers, least)

    def extend(shape: list[tuple[int, int]], images: int, workers: int) -> None:
        if images == 0:
            ordered = tuple(sorted(shape, key=lambda g: -curve.at(g[0]) / g[1]))
            found.setdefault(_rates(ordered, curve), ordered)
            return
        last = shape[-1] if shape else (max(degrees), 1)
        for degree in (d for d in degrees if d <= min(last[0], workers)):
            fewest = last[1] if degree == last[0] else 1
            for count in range(fewest, images + 1) if degree == least else (1,):
                extend([*shape, (degree, count)], images - count, workers - degree)

    extend([], images, workers)
    kept = [
        (shape, rates)
        for rates, shape in found.items()
        if not any(
            other != rates and all(a >= b for a, b in zip(other, rates, strict=True))
            for other in found
        )
    ]
    return tuple(kept)


def _rates(shape: Shape, curve: Curve) -> tuple[float, ...]:
    return tuple(curve.at(degree) / count for degree, count in shape for _ in range(count))
