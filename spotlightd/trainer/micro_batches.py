"""How the pairs (trajectory, window position) of an optimizer step are dealt out.

Every rank makes the same number of calls of the model, because sharded weights are gathered in
each. Where the trajectories do not divide evenly, the last ranks repeat one with weight 0.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class MicroBatch:
    """Pairs of one forward-backward pass, all at one window position."""

    rows: Tensor
    """[B], trajectories' places in the batch."""
    position: int
    """Pairs of one window position share a denoising step where the groups' windows agree."""
    weights: Tensor
    """[B]: share of each pair's loss in the optimizer step; 0 for a repeated trajectory."""
    part: Tensor
    """[P]: all trajectories of the optimizer step, on whatever rank."""

    @property
    def real(self) -> Tensor:
        """Which pairs are no repetitions: bool [B]."""
        return self.weights > 0


def deal(part: Tensor, window: int, size: int, rank: int, ranks: int) -> list[MicroBatch]:
    """Return this rank's micro-batches of an optimizer step; all weights together make 1.

    Args:
        part: [P] trajectories of the step, P >= 1.
        window: window positions of each.
        size: most trajectories in a micro-batch.
    """
    each = -(-len(part) // ranks)
    rows = part[torch.arange(each * ranks).clamp(max=len(part) - 1)]
    weights = (torch.arange(each * ranks) < len(part)).float() / (len(part) * window)
    mine = slice(rank * each, (rank + 1) * each)
    return [
        MicroBatch(chosen, position, weight, part)
        for position in range(window)
        for chosen, weight in zip(
            torch.split(rows[mine], size), torch.split(weights[mine], size), strict=True
        )
    ]
