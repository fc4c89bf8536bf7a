"""Before the first update the ratio is 1: the trainer's log-probs against the producers' own.

A difference means that rollout and training do not call the same policy: other weights, another
precision, another sigma array. It is reported for every producer (DESIGN: what always holds, 5).
"""

import torch
from torch import Tensor

from spotlightd.trainer.batch import WindowBatch
from spotlightd.wire.training import ProducerDifference


class RatioCheck:
    """Collects |log-prob difference| of each pair, before the policy changes."""

    def __init__(self, batch: WindowBatch) -> None:
        self._batch = batch
        self._difference_NW = torch.full_like(batch.old_log_prob_NW, torch.nan)

    def observe(self, rows: Tensor, positions: Tensor, log_prob: Tensor) -> None:
        old = self._batch.old_log_prob_NW[rows, positions]
        self._difference_NW[rows, positions] = (log_prob.cpu() - old).abs()

    def mean(self) -> float:
        return float(self._difference_NW.nanmean())

    def by_producer(self) -> tuple[ProducerDifference, ...]:
        """Return one row a producer, in alphabetical order."""
        producers = self._batch.producers
        return tuple(
            self._row(name, torch.tensor([i for i, p in enumerate(producers) if p == name]))
            for name in sorted(set(producers))
        )

    def _row(self, name: str, rows: Tensor) -> ProducerDifference:
        differences = self._difference_NW[rows].nan_to_num(0.0)
        worst = int(differences.argmax())
        return ProducerDifference(
            name,
            float(differences.mean()),
            float(differences.max()),
            int(self._batch.steps_NW[rows].flatten()[worst]),
        )
