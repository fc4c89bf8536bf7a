"""One update of the policy: ratio check, then a few optimizer steps of clipped policy gradient.

The unit of work is a pair (trajectory, window step); micro-batches are runs of pairs, so one
forward may hold several window steps of one trajectory. A pair's log-prob comes from the same
forward and the same denoising step as in the rollout.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spotlightd.config import TrainerSection
from spotlightd.dit.denoise import DenoiseOutput, denoise_step
from spotlightd.dit.lora import adapter_disabled, adapter_parameters
from spotlightd.dit.models import DiffusionModel
from spotlightd.dit.sampler import Sampler
from spotlightd.trainer.batch import WindowBatch
from spotlightd.trainer.loss import flow_grpo_loss, gaussian_kl
from spotlightd.trainer.ratio_check import RatioCheck
from spotlightd.wire.training import ProducerDifference

OnProgress = Callable[[float], None]


@dataclass
class UpdateReport:
    metrics: dict[str, float]
    differences: tuple[ProducerDifference, ...]


@dataclass
class _Sums:
    """Totals over pairs, for means at the end."""

    pairs: int = 0
    values: dict[str, float] = field(default_factory=dict)

    def add(self, pairs: int, **means: float) -> None:
        self.pairs += pairs
        for name, mean in means.items():
            self.values[name] = self.values.get(name, 0.0) + mean * pairs

    def means(self) -> dict[str, float]:
        return {name: total / max(self.pairs, 1) for name, total in self.values.items()}


class Policy:
    """The trained model with its optimizer.

    Args:
        model: with an adapter attached; only the adapter trains.
    """

    def __init__(self, model: DiffusionModel, section: TrainerSection, clip_range: float) -> None:
        self.model = model
        self.section = section
        self.clip_range = clip_range
        self.parameters = adapter_parameters(model)
        self.optimizer = torch.optim.AdamW(
            list(self.parameters.values()),
            lr=section.learning_rate,
            betas=(0.9, 0.999),
            weight_decay=section.weight_decay,
        )
        self._prompts = Sampler(model)

    def update(self, batch: WindowBatch, seed: int, progress: OnProgress) -> UpdateReport:
        """Take `optimizer_steps` steps on the batch.

        Args:
            seed: orders the trajectories; a repeated update must be given the same one.
            progress: told the share of pairs done after each micro-batch.
        """
        order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(seed))
        parts = [part for part in order.chunk(self.section.optimizer_steps) if len(part)]
        began = time.monotonic()
        check = RatioCheck(batch)
        # The first part is checked by its own training forward, which precedes every update.
        for part in parts[1:]:
            self._check(batch, part, check)
        checked = time.monotonic()
        sums, norms, skipped = _Sums(), [], 0
        for number, part in enumerate(parts):
            self.optimizer.zero_grad(set_to_none=True)
            observed = check if number == 0 else None
            self._accumulate(batch, part, sums, observed, _share(progress, number, len(parts)))
            norm = self._step()
            norms.append(norm)
            skipped += not torch.isfinite(torch.tensor(norm))
        metrics = sums.means() | {
            "grad_norm": sum(norms) / len(norms),
            "skipped_steps": float(skipped),
            "zero_std_groups": float(batch.zero_std_groups),
            "log_prob_difference": check.mean(),
            "seconds_check": checked - began,
            "seconds_update": time.monotonic() - checked,
        }
        return UpdateReport(metrics, check.by_producer())

    # --- inside -------------------------------------------------------------------------------

    def _pairs(self, batch: WindowBatch, part: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return micro-batches of (trajectory rows, window positions), one position each.

        Pairs of one window position share a denoising step where the groups' windows agree.
        """
        size = self.section.micro_batch
        return [
            (rows, torch.full_like(rows, position))
            for position in range(batch.window)
            for rows in torch.split(part, size)
        ]

    def _forward(self, batch: WindowBatch, rows: Tensor, positions: Tensor) -> DenoiseOutput:
        settings = batch.settings
        device = self.model.device
        latents = batch.latents_NWLD[rows, positions].to(device)
        sigma = batch.sigma_NW[rows, positions]
        prompts = self._prompts.prompt_embeds([batch.prompts[row] for row in rows.tolist()])
        velocity = self.model.velocity(latents, sigma.to(device), prompts, settings)
        return denoise_step(
            settings.sde_form,
            latents,
            velocity,
            sigma,
            batch.sigma_next_NW[rows, positions],
            settings.noise_level,
            settings.sigmas[1],
            next_latents_BLD=batch.next_latents_NWLD[rows, positions].to(device),
        )

    @torch.no_grad()
    def _check(self, batch: WindowBatch, part: Tensor, check: RatioCheck) -> None:
        for rows, positions in self._pairs(batch, part):
            log_prob = self._forward(batch, rows, positions).log_prob
            assert log_prob is not None
            check.observe(rows, positions, log_prob)

    def _accumulate(
        self,
        batch: WindowBatch,
        part: Tensor,
        sums: _Sums,
        check: RatioCheck | None,
        progress: OnProgress,
    ) -> None:
        """Add the gradient of the mean loss over all pairs of one optimizer step."""
        micro_batches = self._pairs(batch, part)
        total = len(part) * batch.window
        for number, (rows, positions) in enumerate(micro_batches, start=1):
            out = self._forward(batch, rows, positions)
            assert out.log_prob is not None
            if check is not None:
                check.observe(rows, positions, out.log_prob.detach())
            loss = self._loss(batch, rows, positions, out, sums)
            torch.autograd.backward(loss * (len(rows) / total))
            progress(number / len(micro_batches))

    def _loss(
        self, batch: WindowBatch, rows: Tensor, positions: Tensor, out: DenoiseOutput, sums: _Sums
    ) -> Tensor:
        assert out.log_prob is not None
        device = out.log_prob.device
        old = batch.old_log_prob_NW[rows, positions].to(device)
        loss = flow_grpo_loss(
            out.log_prob, old, batch.advantages_N[rows].to(device), self.clip_range
        )
        kl = torch.zeros((), device=device)
        if self.section.kl_beta:
            with torch.no_grad(), adapter_disabled(self.model):
                reference = self._forward(batch, rows, positions)
            kl = gaussian_kl(out.mean, reference.mean, out.scale).mean()
        ratio = torch.exp(out.log_prob.detach() - old)
        sums.add(
            len(rows),
            loss=loss.item(),
            kl=kl.item(),
            ratio_mean=ratio.mean().item(),
            clip_fraction=((ratio - 1).abs() > self.clip_range).float().mean().item(),
        )
        return loss + self.section.kl_beta * kl

    def _step(self) -> float:
        """Clip, step unless the gradient is not finite; return its norm before clipping."""
        parameters = list(self.parameters.values())
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self.section.max_grad_norm))
        if torch.isfinite(torch.tensor(norm)):
            self.optimizer.step()
        return norm


def _share(progress: OnProgress, number: int, count: int) -> OnProgress:
    """Return a callback for one of `count` equal parts of the work."""
    return lambda fraction: progress((number + fraction) / count)
