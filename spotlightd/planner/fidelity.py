"""How well scores from exploration predict the regenerated rewards (rank fidelity), per arm.

Both are compared within a prompt, in units of that prompt's spread over all explored candidates:
x from exploration, y regenerated. Selection looks at x alone, so the regression of y on x is not
biased by it, while the correlation would be: extremes correlate better. From slope and residual,

    rho = b / sqrt(b^2 + s^2),   b = Sxy / Sxx,   s^2 = (Syy - b Sxy) / n,

is the correlation that unselected seeds would show (correction for restricted range; Pearson
1903). All K pairs of a group count, not only its control seeds.
"""

import math
from collections.abc import Sequence

from msgspec import Struct

PRIOR_PAIRS = 6.0
PRIOR_RHO = 0.8
"""What is believed of an arm that was never tried: optimistic, so that it is."""


class Fidelity(Struct):
    """Belief about one arm: discounted sums over pairs, on top of the prior's pseudo-pairs."""

    pairs: float = 0.0
    sxx: float = 0.0
    sxy: float = 0.0
    syy: float = 0.0

    def forget(self, discount: float) -> None:
        """An iteration passed: what is not tried again returns to the prior."""
        self.pairs *= discount
        self.sxx *= discount
        self.sxy *= discount
        self.syy *= discount

    def observe(self, stale: Sequence[float], fresh: Sequence[float]) -> None:
        """Take the pairs of one group, in units of the prompt's spread."""
        if len(stale) < 2:
            return
        x_mean, y_mean = sum(stale) / len(stale), sum(fresh) / len(fresh)
        self.pairs += len(stale) - 1
        for x, y in zip(stale, fresh, strict=True):
            self.sxx += (x - x_mean) ** 2
            self.sxy += (x - x_mean) * (y - y_mean)
            self.syy += (y - y_mean) ** 2

    def _regression(self) -> tuple[float, float, float]:
        """Return (slope, its standard error, residual variance)."""
        sxx = self.sxx + PRIOR_PAIRS
        sxy = self.sxy + PRIOR_PAIRS * PRIOR_RHO
        syy = self.syy + PRIOR_PAIRS
        slope = sxy / sxx
        residual = max(syy - slope * sxy, 1e-9) / (self.pairs + PRIOR_PAIRS)
        return slope, math.sqrt(residual / sxx), residual

    def rho(self, deviations: float = 0.0) -> float:
        """Return rank fidelity in [0, 1], with the slope so many standard errors off its mean."""
        slope, error, residual = self._regression()
        slope = max(slope + deviations * error, 0.0)
        return slope / math.hypot(slope, math.sqrt(residual))

    def error(self) -> float:
        """Return the standard error of rho, to first order."""
        slope, error, residual = self._regression()
        return float(error * residual / (slope**2 + residual) ** 1.5)
