"""The bandit: how many denoising steps, and so how many seeds, an iteration explores.

While training lasts, spot GPUs can score a number of candidates that depends on their cost. An arm
shortens the ODE tail after the SDE window to `tail` steps; the window's steps, in which the noise
is, always stay. A short tail costs less, so that N is larger, and ranks worse. For a prompt of
reward variance s^2 the group that trains is expected to have the variance

    s^2 g,   g(N, tail) = 1 + rho_tail^2 (K - c) / K (w(N - c, K - c) - 1),      (variance.py)

where w is known, N follows from the time (timing.py), and rho is learned (fidelity.py). So there
is one unknown per tail instead of one per cell (N, tail). The policy moves and rho with it: what
is known of an arm fades by `DISCOUNT` per iteration, back to an optimistic prior. Which arm to
take is decided by a draw from each posterior (Thompson 1933; for the discount, Raj and Kalyani
2017, arXiv 1707.09727).

Spotlight (arXiv 2606.19004) describes a bandit that plans for most reward variance within the
training window; arms, model and budget rule here are this project's own.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

from msgspec import Struct, field

from spotlightd.planner.fidelity import Fidelity
from spotlightd.planner.seeds import keyed_hash
from spotlightd.planner.variance import group_gain

DISCOUNT = 0.8


@dataclass(frozen=True)
class Offer:
    """What an arm would explore."""

    tail: int
    """ODE steps after the SDE window."""
    steps: float
    """Denoising steps of a candidate, mean over prompts."""
    candidates: int
    """N: seeds per prompt that it leaves time for."""


class Arms(Struct):
    """Beliefs about rank fidelity by arm."""

    beliefs: dict[str, Fidelity] = field(default_factory=dict)
    """By `<tail>/<staleness>`."""

    def belief(self, tail: int, staleness: int) -> Fidelity:
        return self.beliefs.setdefault(f"{tail}/{staleness}", Fidelity())

    def rows(self) -> list[tuple[int, int, Fidelity]]:
        """Return (tail, staleness, belief) of every arm that was looked at."""
        keys = sorted(tuple(map(int, key.split("/"))) for key in self.beliefs)
        return [(tail, lag, self.belief(tail, lag)) for tail, lag in keys]

    def forget(self) -> None:
        """An iteration passed."""
        for belief in self.beliefs.values():
            belief.forget(DISCOUNT)


def tails_of(full_tail: int) -> list[int]:
    """Return the arms: powers of two below the full tail, and the full tail."""
    return [2**i for i in range(16) if 2**i < full_tail] + [full_tail]


def choose(
    offers: Iterable[Offer],
    arms: Arms,
    staleness: int,
    group_size: int,
    controls: int,
    key: tuple[int, int],
) -> Offer:
    """Return the offer whose drawn fidelity promises the largest variance.

    Args:
        staleness: policy versions between exploration and training.
        group_size, controls: K and c.
        key: (run seed, iteration); equal keys draw alike on every machine.

    Where no arm leaves time to select, the one that scores most seeds is taken: fidelity is
    learned from them all the same.
    """

    def worth(offer: Offer) -> tuple[float, int, int]:
        uniform = (keyed_hash("thompson", *key, offer.tail) + 0.5) / 2**64
        drawn = arms.belief(offer.tail, staleness).rho(NormalDist().inv_cdf(uniform))
        gain = group_gain(offer.candidates, group_size, controls, drawn)
        return gain, offer.candidates, offer.tail

    return max(offers, key=worth)
