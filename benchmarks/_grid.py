"""Which cells the tables of results are made of."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from _cells import CASES, SIZES, TASKS, Cell, make_cell

from spotlightd.simulate.variants import ABLATIONS, BASELINES

SIDES = (512, 1280)
BASE, SUBSET, MORE, SYSTEM = "reserved", "reserved_subset", "reserved_3x", "spotlight"
CORE = (BASE, SUBSET, MORE, "spot", SYSTEM)
"""Variants that are run in every setting; the others with the first trace and task only."""


@dataclass(frozen=True)
class Grid:
    traces: Sequence[str]
    sides: Sequence[int] = SIDES
    tasks: Sequence[str] = tuple(TASKS)
    seeds: Sequence[int] = (1, 2, 3)
    cases: Sequence[str] = tuple(CASES)
    case_seeds: Sequence[int] = (1,)
    sizes: Sequence[str] = tuple(SIZES)
    ablations: Sequence[str] = tuple(variant.name for variant in ABLATIONS)

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(variant.name for variant in BASELINES if variant.name not in CORE)

    @property
    def ablated_side(self) -> int:
        """The largest pictures: there a lost one costs most."""
        return max(self.sides)

    def cells(self) -> list[Cell]:
        """Every cell once; whole seeds first, so that a stopped run has whole rows."""
        return list(dict.fromkeys(self._all()))

    def _all(self) -> Iterator[Cell]:
        first, task = self.traces[0], self.tasks[0]
        for seed in self.seeds:
            for side in self.sides:
                for each in self.tasks:
                    for trace in self.traces:
                        for variant in CORE:
                            yield make_cell(variant, side, each, trace, seed)
                for variant in self.others:
                    yield make_cell(variant, side, task, first, seed)
            for variant in self.ablations:
                yield make_cell(variant, self.ablated_side, task, first, seed)
            for case in self.sizes:
                for variant in (SUBSET, SYSTEM):
                    yield make_cell(variant, self.sides[0], task, first, seed, case)
            for case in self.cases:
                yield make_cell("spot", self.sides[0], task, first, seed, case)
                if seed in self.case_seeds:
                    for variant in (BASE, SYSTEM):
                        yield make_cell(variant, self.sides[0], task, first, seed, case)
