"""What every rank of the trainer does, in step: load a batch, update, publish, compute velocities.

Rank 0 decides what comes next (`crew.py`); nothing here talks to the daemon.
"""

import logging
import math
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from spotlightd.atomic import write_file
from spotlightd.dit.models import PromptEmbeds
from spotlightd.planner.seeds import keyed_hash
from spotlightd.store.blobs import Blobs
from spotlightd.trainer.batch import WindowBatch, load_batch
from spotlightd.trainer.checkpoint import save_checkpoint
from spotlightd.trainer.policy import Policy
from spotlightd.trainer.settings import TrainerSettings
from spotlightd.trainer.sharding import whole_tensors
from spotlightd.trainer.update import OnChecked, OnProgress, UpdateReport, train_on
from spotlightd.wire.sampling import SamplerSettings
from spotlightd.wire.training import Train

logger = logging.getLogger(__name__)


class Actions:
    """One rank's policy, and all that is done to it after the start."""

    def __init__(self, settings: TrainerSettings, policy: Policy) -> None:
        self.policy = policy
        self.ranks = policy.ranks
        self._config = settings.config
        self._state_dir = Path(settings.state_dir)
        self._blobs = Blobs(self._state_dir / "blobs")
        sampler = settings.config.sampler
        self.latent_shape = policy.model.latent_shape(
            sampler.height, sampler.width, sampler.num_frames
        )

    def load(self, message: Train) -> WindowBatch | None:
        """Return what to train on; None where no group has spread. Raises DamagedError."""
        section = self._config.trainer
        return load_batch(
            message,
            self._blobs,
            self.latent_shape,
            math.inf if section.objective == "flow_dppo" else section.advantage_clip,
            section.global_std,
            section.normalise_over == "control",
        )

    def update(
        self,
        batch: WindowBatch,
        version: int,
        progress: OnProgress = lambda _: None,
        checked: OnChecked = lambda _: None,
    ) -> UpdateReport:
        """Turn `version` into the next one."""
        seed = keyed_hash("update", self._config.run.seed, version) >> 1
        return train_on(self.policy, batch, seed, progress, checked)

    def publish(self, version: int) -> None:
        """Checkpoint first: a version that others hold can always be gone on from."""
        keep = self._config.trainer.checkpoints_kept
        save_checkpoint(self._state_dir / "checkpoints", version, self.policy, keep)
        self.write_policy(version)

    def write_policy(self, version: int) -> None:
        """Write the weights that the fleet samples this version with, in the dtype it does."""
        self.policy.select(averages=False)
        dtype = self.policy.compute_dtype
        tensors = whole_tensors(self.policy.parameters)
        if self.ranks.leads:
            path = self._state_dir / "weights" / str(version) / "adapter.safetensors"
            write_file(path, save({k: t.to(dtype or t.dtype) for k, t in tensors.items()}))

    @torch.no_grad()
    def velocity(
        self, latents_BLD: Tensor, sigma_B: Tensor, prompts: PromptEmbeds, settings: SamplerSettings
    ) -> Tensor:
        """Compute this rank's share of a batch and return the whole of it, [B, L, D].

        Every rank must be given the same arguments; the last rows repeat where they do not divide
        evenly.
        """
        batch, count = len(sigma_B), self.ranks.count
        each = -(-batch // count)
        rows = torch.arange(self.ranks.rank * each, (self.ranks.rank + 1) * each)
        rows = rows.clamp(max=batch - 1)
        mine = self.policy.model.velocity(
            latents_BLD[rows], sigma_B[rows], prompts.take(rows.tolist()), settings
        )
        return self.ranks.gather_rows(mine)[:batch]
