"""The trainer process once torch is loaded: model, checkpoint, link, loop."""

import logging
import os
import signal
import sys
from pathlib import Path

import torch

from spotlightd.dit.lora import attach_lora, bind_adapter, read_adapter
from spotlightd.dit.models import load_model
from spotlightd.errors import InputError, SpotlightError
from spotlightd.trainer.checkpoint import load_checkpoint, save_checkpoint
from spotlightd.trainer.clip import resolve_clip_range
from spotlightd.trainer.link import TrainerLink
from spotlightd.trainer.loop import TrainerLoop, write_adapter
from spotlightd.trainer.policy import Policy
from spotlightd.trainer.settings import TrainerSettings, read_settings

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def build_policy(settings: TrainerSettings) -> Policy:
    """Load the model and attach the adapter."""
    section = settings.config.trainer
    torch.set_num_threads(section.threads)
    device = section.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_model(Path(settings.model_dir), DTYPES[section.dtype], device)
    attach_lora(model, section.lora_rank, section.lora_alpha, settings.config.run.seed)
    sampler = settings.config.sampler
    tokens, channels = model.latent_shape(sampler.height, sampler.width)
    return Policy(model, section, resolve_clip_range(section, tokens * channels))


def restore(settings: TrainerSettings, policy: Policy) -> int:
    """Bring the policy to the version to go on from, and see that its files lie there.

    Where that version's checkpoint is damaged, its adapter file still holds the exact policy; the
    optimizer then goes on from the newest good checkpoint before it.
    """
    state_dir, version = Path(settings.state_dir), settings.resume_version
    checkpoints = state_dir / "checkpoints"
    if version < 0:
        save_checkpoint(checkpoints, 0, policy, settings.config.trainer.checkpoints_kept)
        write_adapter(state_dir, 0, policy)
        return 0
    if not checkpoints.is_dir() and version == 0:
        raise InputError(f"{checkpoints} is missing: restore it, or start in a new state directory")
    restored = load_checkpoint(checkpoints, version, policy)
    if restored != version:
        path = state_dir / "weights" / str(version) / "adapter.safetensors"
        bind_adapter(policy.model, read_adapter(path), str(path))
        logger.warning(
            "version %d is taken from %s, the optimizer's state from checkpoint %d",
            version,
            path,
            restored,
        )
    else:
        write_adapter(state_dir, version, policy)
    return version


def run(settings_file: Path) -> int:
    """Train until told to stop; return the exit code."""
    try:
        settings = read_settings(settings_file)
        policy = build_policy(settings)
        version = restore(settings, policy)
        link = TrainerLink(settings)
        loop = TrainerLoop(settings, policy, link, version)
        signal.signal(signal.SIGTERM, lambda *_: setattr(loop, "stopping", True))
        logger.info("trainer ready with version %d (pid %d)", version, os.getpid())
        loop.run()
        link.close()
    except SpotlightError as error:
        print(f"trainer: {error}", file=sys.stderr)
        return int(error.exit_code)
    return 0
