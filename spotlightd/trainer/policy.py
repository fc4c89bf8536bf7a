"""The trained weights with all that belongs to them: optimizer, average, reference."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from spotlightd.dit.lora import adapter_disabled, policy_parameters
from spotlightd.dit.models import DiffusionModel
from spotlightd.dit.sampler import Sampler
from spotlightd.sections import TrainerSection
from spotlightd.trainer.ema import Ema
from spotlightd.trainer.ranks import Ranks
from spotlightd.trainer.sharding import shard, whole

BETAS = (0.9, 0.999)


class Policy:
    """The model that trains, on this rank.

    Args:
        model: with an adapter attached, which alone trains; without one every weight does.
        clip_range: half-width of the ratio's trust interval, for the mean form of the log-prob.
        ranks: who trains together.
        compute_dtype: None: the weights' own; else weights are sharded and cast to it.
    """

    def __init__(
        self,
        model: DiffusionModel,
        section: TrainerSection,
        clip_range: float,
        ranks: Ranks | None = None,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        self.model = model
        self.sampler = Sampler(model)
        """Keeps the prompts' embeddings from one update to the next."""
        self.section = section
        self.clip_range = clip_range
        self.ranks = ranks or Ranks()
        self.compute_dtype = compute_dtype
        self._reference: Any = None
        """Frozen copy of the base model, where every weight trains and a KL is asked for."""
        if section.train == "full":
            if section.kl_beta:
                self._reference = copy.deepcopy(model.transformer).requires_grad_(False)
            model.transformer.requires_grad_(True)
        if section.activation_checkpointing:
            model.transformer.enable_gradient_checkpointing()
        if self.ranks.count > 1 or compute_dtype is not None:
            mesh = self.ranks.mesh()
            for transformer in (model.transformer, self._reference):
                if transformer is not None:
                    shard(transformer, mesh, compute_dtype)
        self.parameters = policy_parameters(model)
        self.optimizer = torch.optim.AdamW(
            list(self.parameters.values()),
            lr=section.learning_rate,
            betas=BETAS,
            weight_decay=section.weight_decay,
        )
        self.ema = Ema(self.parameters, section.ema_decay) if section.ema_decay else None

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Within the block the model is the policy that training began with."""
        if self._reference is None:
            with adapter_disabled(self.model):
                yield
            return
        trained = self.model.transformer
        self.model.transformer = self._reference
        try:
            yield
        finally:
            self.model.transformer = trained

    def select(self, averages: bool) -> None:
        """Put the weights' average into the model, or the live weights back."""
        if self.ema is not None:
            self.ema.select(averages)

    def step(self) -> float:
        """Clip the gradient of all ranks together and take an optimizer step.

        Returns the norm before clipping. Where it is not finite nothing changes, on any rank.
        """
        parameters = list(self.parameters.values())
        total = torch.nn.utils.clip_grad_norm_(parameters, self.section.max_grad_norm)
        norm = float(whole(total))
        if norm == norm and norm != float("inf"):
            self.optimizer.step()
            if self.ema is not None:
                self.ema.observe()
        return norm
