"""Outcomes of the grid's cells by setting, and the figures that the tables are made of."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from _cells import Cell, make_cell
from _grid import BASE, MORE, SUBSET, SYSTEM, Grid
from _ratios import DISCOUNTS, cost_at, paired, spread

from spotlightd.simulate.assumptions import Assumptions
from spotlightd.simulate.outcome import Outcome

PAPER_TIME, PAPER_COST, PAPER_IDLE = 4.0, (1.4, 6.4), 0.47
"""What the paper claims (arXiv 2606.19004: abstract; the idle share as others report it)."""
IDLE_POINTS = 0.05

Setting = tuple[int, str, str]
"""(side, task, trace)."""


@dataclass(frozen=True)
class Results:
    grid: Grid
    outcomes: Mapping[Cell, Outcome]
    given: Assumptions

    def settings(self) -> list[Setting]:
        grid = self.grid
        return [(s, task, t) for s in grid.sides for task in grid.tasks for t in grid.traces]

    @property
    def first(self) -> Setting:
        return self.settings()[0]

    @property
    def ablated(self) -> Setting:
        return (self.grid.ablated_side, self.grid.tasks[0], self.grid.traces[0])

    def runs(self, variant: str, setting: Setting, case: str = "") -> dict[int, Outcome]:
        """Return the outcomes by seed; empty where the grid has none."""
        cells = {s: make_cell(variant, *setting, s, case) for s in self.grid.seeds}
        return {seed: self.outcomes[cell] for seed, cell in cells.items() if cell in self.outcomes}

    def time_ratios(
        self,
        base: str,
        other: str,
        setting: Setting,
        case: str = "",
        base_case: str | None = None,
    ) -> list[float]:
        """Return how many times sooner the other is, by seed.

        Args:
            base_case: of the base; None: the other's.
        """
        first = self.runs(base, setting, case if base_case is None else base_case)
        second = self.runs(other, setting, case)
        return paired(
            {seed: o.time_s for seed, o in first.items()},
            {seed: o.time_s for seed, o in second.items()},
        )

    def cost_ratios(
        self,
        base: str,
        other: str,
        setting: Setting,
        discount: float | None = None,
        case: str = "",
        base_case: str | None = None,
    ) -> list[float]:
        """Return how many times cheaper the other is, by seed.

        Args:
            discount: of spot GPUs; None: at the assumed prices.
            base_case: of the base; None: the other's.
        """
        first = self.runs(base, setting, case if base_case is None else base_case)
        second = self.runs(other, setting, case)
        return paired(
            {seed: self._cost(o, discount) for seed, o in first.items()},
            {seed: self._cost(o, discount) for seed, o in second.items()},
        )

    @property
    def group_size(self) -> int:
        return self.given.learning.group_size

    def _cost(self, outcome: Outcome, discount: float | None) -> float:
        if discount is None:
            return outcome.cost
        return cost_at(outcome, self.given.prices.reserved, discount)

    @property
    def spot_price(self) -> float:
        return fmean(self.given.prices.spot.values())

    @property
    def discount(self) -> float:
        """The assumed one, mean over zones."""
        return 1 - self.spot_price / self.given.prices.reserved

    def means(self, which: str, base: str, other: str = SYSTEM) -> list[float]:
        """Return the mean ratio of each setting. Args: which: "time" or "cost"."""
        ratios = self.time_ratios if which == "time" else self.cost_ratios
        return [spread(ratios(base, other, setting)).mean for setting in self.settings()]

    def idle(self, variant: str, setting: Setting, case: str = "") -> list[float]:
        return [o.spot.idle_share for o in self.runs(variant, setting, case).values()]

    def figures(self) -> dict[str, float]:
        """Return the headline figures by name, for JSON and for the checks of targets."""
        found: dict[str, float] = {}
        for which in ("time", "cost"):
            for base in (BASE, SUBSET, MORE, "spot"):
                means = self.means(which, base)
                found[f"{which}_over_{base}_worst"] = min(means)
                found[f"{which}_over_{base}_best"] = max(means)
        for discount in DISCOUNTS:
            ratios = [
                spread(self.cost_ratios(BASE, SYSTEM, setting, discount)).mean
                for setting in self.settings()
            ]
            found[f"cost_over_reserved_at_{100 * discount:.0f}_off_worst"] = min(ratios)
            found[f"cost_over_reserved_at_{100 * discount:.0f}_off_best"] = max(ratios)
        found["idle_without_exploration"] = fmean(self.idle("spot", self.first))
        found["idle_of_this_system"] = fmean(self.idle(SYSTEM, self.first))
        return found
