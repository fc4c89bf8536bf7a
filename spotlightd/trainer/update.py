"""One update of the policy: ratio check, then a few optimizer steps.

The unit of work is a pair (trajectory, window position). A pair's log-prob comes from the same
forward and the same denoising step as in the rollout, and the first optimizer step's training
forward is its check.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from spotlightd.trainer.batch import WindowBatch
from spotlightd.trainer.micro_batches import MicroBatch, deal
from spotlightd.trainer.objectives import Nft, Objective, PolicyGradient, Prediction
from spotlightd.trainer.policy import Policy
from spotlightd.trainer.ratio_check import RatioCheck
from spotlightd.wire.training import ProducerDifference

OnProgress = Callable[[float], None]
OnChecked = Callable[[tuple[ProducerDifference, ...]], None]


@dataclass
class UpdateReport:
    metrics: dict[str, float]
    differences: tuple[ProducerDifference, ...]


def train_on(
    policy: Policy,
    batch: WindowBatch,
    seed: int,
    progress: OnProgress,
    checked: OnChecked = lambda _: None,
) -> UpdateReport:
    """Take `optimizer_steps` steps on the batch; every rank calls this with the same arguments.

    Args:
        seed: orders the trajectories; a repeated update must be given the same one.
        progress: told the share of pairs done after each micro-batch.
        checked: told each producer's difference before anything is updated; may refuse by raising.
    """
    policy.select(averages=False)
    return _Update(policy, batch, seed).run(progress, checked)


class _Update:
    def __init__(self, policy: Policy, batch: WindowBatch, seed: int) -> None:
        section, ranks = policy.section, policy.ranks
        order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(seed))
        self._policy = policy
        self._batch = batch
        self._parts = [
            deal(part, batch.window, section.micro_batch, ranks.rank, ranks.count)
            for part in order.chunk(section.optimizer_steps)
            if len(part)
        ]
        self._window = PolicyGradient(policy.sampler, section, policy.clip_range)
        self._objective: Objective = self._window
        if section.objective == "nft":
            self._objective = Nft(policy.sampler, section, batch, seed)
        self._check = RatioCheck(batch)
        self._old: dict[int, list[Tensor]] = {}
        """By optimizer step: the old policy's value of each micro-batch."""
        self._sums: dict[str, Tensor] = {}
        """Weighted sums over this rank's pairs; over all ranks and steps they add up to means
        times the number of steps."""

    def run(self, progress: OnProgress, checked: OnChecked) -> UpdateReport:
        began = time.monotonic()
        self._prepare()
        prepared = time.monotonic()
        norms = []
        for number, part in enumerate(self._parts):
            self._policy.optimizer.zero_grad(set_to_none=True)
            self._accumulate(number, part, progress)
            if number == 0:
                self._check.complete(self._policy.ranks)
                checked(self._check.by_producer())
            norms.append(self._policy.step())
        metrics = self._means() | {
            "grad_norm": sum(norms) / len(norms),
            "skipped_steps": float(sum(not math.isfinite(norm) for norm in norms)),
            "zero_std_groups": float(self._batch.zero_std_groups),
            "log_prob_difference": self._check.mean(),
            "seconds_check": prepared - began,
            "seconds_update": time.monotonic() - prepared,
        }
        return UpdateReport(metrics, self._check.by_producer())

    @torch.no_grad()
    def _prepare(self) -> None:
        """See what the old policy says of pairs that train after it has changed.

        The first step's pairs are seen by its own training forward, which precedes every change.
        """
        replays = self._objective is not self._window
        for number, part in enumerate(self._parts):
            if number or replays:
                predictions = [self._window.predict(self._batch, pairs) for pairs in part]
                for pairs, prediction in zip(part, predictions, strict=True):
                    self._check.observe(pairs, prediction)
                if number and replays:
                    predictions = [self._objective.predict(self._batch, pairs) for pairs in part]
                if number and self._objective.keeps_old:
                    self._old[number] = [prediction.value for prediction in predictions]

    def _accumulate(self, number: int, part: list[MicroBatch], progress: OnProgress) -> None:
        """Add up the gradient of the mean loss over all pairs of one optimizer step."""
        old = self._old.pop(number, None)
        for place, pairs in enumerate(part):
            now = self._objective.predict(self._batch, pairs)
            if number == 0 and self._objective is self._window:
                self._check.observe(pairs, now)
            before = now.value.detach() if old is None else old[place]
            loss = self._loss(pairs, now, before)
            # Sharded gradients are averaged over ranks; the weights are of the sum.
            torch.autograd.backward(loss * self._policy.ranks.count)
            progress((number + (place + 1) / len(part)) / len(self._parts))

    def _loss(self, pairs: MicroBatch, now: Prediction, old: Tensor) -> Tensor:
        weights = pairs.weights.to(now.value.device)
        losses = self._objective.losses(self._batch, pairs, now, old)
        figures = {"loss": losses.detach()}
        beta = self._policy.section.kl_beta
        if beta:
            with torch.no_grad(), self._policy.reference():
                reference = self._objective.predict(self._batch, pairs)
            divergences = self._objective.divergences(now, reference.value)
            figures["kl"] = divergences.detach()
            losses = losses + beta * divergences
        if now.log_prob is not None:
            old_log_prob = self._batch.old_log_prob_NW[pairs.rows, pairs.position]
            ratio = torch.exp(now.log_prob.detach() - old_log_prob.to(weights.device))
            figures["ratio_mean"] = ratio
            figures["clip_fraction"] = ((ratio - 1).abs() > self._policy.clip_range).float()
        for name, values in figures.items():
            # A repeated pair may hold anything, but 0 times a NaN is one.
            added = torch.where(weights > 0, values * weights, 0.0).sum()
            self._sums[name] = self._sums[name] + added if name in self._sums else added
        return torch.where(weights > 0, losses * weights, 0.0).sum()

    def _means(self) -> dict[str, float]:
        """Return means over all pairs of all ranks; each optimizer step counts by its pairs."""
        names = list(self._sums)
        totals = self._policy.ranks.total(torch.stack([self._sums[name] for name in names]))
        means = (totals / len(self._parts)).tolist()
        return dict(zip(names, means, strict=True))
