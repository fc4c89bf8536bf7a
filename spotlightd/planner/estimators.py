"""Discounted estimates of what drifts: each forgets the past and knows how much it knows."""

import math

from msgspec import Struct


class Running(Struct):
    """Mean and spread of a quantity, with older observations counting less."""

    weight: float = 0.0
    mean: float = 0.0
    scatter: float = 0.0
    """Discounted sum of squared deviations from the mean."""

    def observe(self, value: float, discount: float) -> None:
        self.weight = discount * self.weight + 1
        shift = value - self.mean
        self.mean += shift / self.weight
        self.scatter = discount * self.scatter + shift * (value - self.mean)

    def sd(self, prior: float, prior_weight: float = 2.0) -> float:
        """Return the standard deviation of the next value.

        Args:
            prior: spread relative to the mean, believed before anything was seen and worth
                `prior_weight` observations.
        """
        scatter = self.scatter + prior_weight * (prior * self.mean) ** 2
        total = self.weight + prior_weight
        return math.sqrt(scatter / total * (1 + 1 / total))


ANCHOR = 0.5
"""Weight of the pseudo-observation (0, 0): one abscissa alone reads as a proportional cost."""


class Line(Struct):
    """Least squares of y = a + b x, with older observations counting less."""

    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    yy: float = 0.0
    """Discounted sums."""

    def observe(self, x: float, y: float, discount: float) -> None:
        self.weight = discount * self.weight + 1
        self.x = discount * self.x + x
        self.y = discount * self.y + y
        self.xx = discount * self.xx + x * x
        self.xy = discount * self.xy + x * y
        self.yy = discount * self.yy + y * y

    def predict(self, x: float, prior: float = 0.1) -> tuple[float, float] | None:
        """Return (mean, standard deviation) of y at x; None before anything was seen.

        Args:
            prior: relative spread believed beforehand, worth two observations.
        """
        if not self.weight:
            return None
        total = self.weight + ANCHOR
        slope = (self.xy - self.x * self.y / total) / (self.xx - self.x * self.x / total)
        offset = (self.y - slope * self.x) / total
        mean = offset + slope * x
        residual = max(self.yy - offset * self.y - slope * self.xy, 0.0)
        variance = (residual + 2 * (prior * mean) ** 2) / (self.weight + 2)
        return mean, math.sqrt(variance)
