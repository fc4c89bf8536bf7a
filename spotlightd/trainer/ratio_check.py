"""Before the first update the ratio is 1: the trainer's log-probs against the producers' own.

A difference means that rollout and training do not call the same policy: other weights, another
precision, another sigma array. It is reported for every producer (DESIGN: what always holds, 5).
The same forwards show the noise that each rollout drew.
"""

import logging

import torch
from torch import Tensor

from spotlightd.errors import InputError
from spotlightd.trainer.batch import WindowBatch
from spotlightd.trainer.micro_batches import MicroBatch
from spotlightd.trainer.objectives import Prediction
from spotlightd.trainer.ranks import Ranks
from spotlightd.wire.training import ProducerDifference

logger = logging.getLogger(__name__)

NOISE_ELEMENTS = 64
"""Elements of a step's noise that are compared; two independent draws never come close."""
SAME_NOISE = 0.05
"""Root mean square difference below which two draws of unit noise are one."""


WARN_AT = 0.1
"""Share of the clip range from which a producer's mean difference is worth a warning."""


class Judge:
    """What a producer's differences mean, before anything is updated with its rollouts."""

    def __init__(self, clip_range: float) -> None:
        self._clip_range = clip_range
        self._trusted: set[str] = set()
        """Producers whose first rollouts in this process's life agreed."""

    def checked(self, rows: tuple[ProducerDifference, ...]) -> None:
        """Warn of a difference near the clip range: the policy gradient is then mostly noise.

        Raises InputError where a producer's first rollouts differ by more than the clip range.
        """
        for row in rows:
            text = (
                f"log-probs of {row.producer} differ from the trainer's by "
                f"{row.mean_abs_difference:.2g} on average ({row.max_abs_difference:.2g} at most, "
                f"at step {row.worst_step}), clip range {self._clip_range:.2g}: does it run the "
                f"same weights and precision?"
            )
            if row.mean_abs_difference > self._clip_range and row.producer not in self._trusted:
                raise InputError(f"refused to train: {text}")
            self._trusted.add(row.producer)
            if row.mean_abs_difference > WARN_AT * self._clip_range:
                logger.warning("%s", text)


class RatioCheck:
    """Collects |log-prob difference| of each pair, before the policy changes."""

    def __init__(self, batch: WindowBatch) -> None:
        self._batch = batch
        self._difference_NW = torch.full_like(batch.old_log_prob_NW, torch.nan)
        elements = min(NOISE_ELEMENTS, batch.next_latents_NWLD[0, 0].numel())
        self._noise_NE = torch.full((len(batch), elements), torch.nan)

    def observe(self, pairs: MicroBatch, prediction: Prediction) -> None:
        """Take the old policy's prediction of some pairs of the window."""
        assert prediction.log_prob is not None
        rows, position = pairs.rows, pairs.position
        old = self._batch.old_log_prob_NW[rows, position]
        self._difference_NW[rows, position] = (prediction.log_prob.detach().cpu() - old).abs()
        if position == 0:
            elements = self._noise_NE.shape[1]
            reached = self._batch.next_latents_NWLD[rows, 0].flatten(1)[:, :elements]
            mean = prediction.value.detach().flatten(1)[:, :elements].cpu()
            self._noise_NE[rows] = (reached - mean) / prediction.scale.flatten()[:, None].cpu()

    def complete(self, ranks: Ranks) -> None:
        """Bring together what the ranks observed.

        Raises InputError where rollouts of a group share their noise: nothing can be learned from
        their difference, and advantages built on it are noise.
        """
        for values in (self._difference_NW, self._noise_NE):
            seen = ranks.total((~values.isnan()).float())
            values.copy_(ranks.total(values.nan_to_num(0.0)) / seen)
        self._refuse_equal_noise()

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

    def _refuse_equal_noise(self) -> None:
        for group in torch.unique(self._batch.group_N).tolist():
            rows = (self._batch.group_N == group).nonzero().flatten()
            same = too_close(self._noise_NE[rows])
            if same:
                first, second = (self._batch.request_ids[int(rows[i])] for i in same[0])
                raise InputError(
                    f"{len(same)} pairs of rollouts share their step noise although their seeds "
                    f"differ, such as {first} and {second}: a producer does not key noise by seed"
                )


def too_close(noise_NE: Tensor) -> list[list[int]]:
    """Return the pairs of rows, as [first, second], that are one draw of unit noise."""
    apart = (noise_NE[:, None] - noise_NE[None]).square().mean(dim=2).sqrt()
    pairs: list[list[int]] = (apart < SAME_NOISE).triu(diagonal=1).nonzero().tolist()
    return pairs
