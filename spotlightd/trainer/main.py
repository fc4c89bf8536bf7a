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
from spotlightd.trainer.actions import Actions
from spotlightd.trainer.checkpoint import load_checkpoint
from spotlightd.trainer.clip import resolve_clip_range
from spotlightd.trainer.crew import Crew, follow
from spotlightd.trainer.link import TrainerLink
from spotlightd.trainer.loop import TrainerLoop
from spotlightd.trainer.policy import Policy
from spotlightd.trainer.ranks import join_ranks, leave_ranks
from spotlightd.trainer.self_check import check_equal_weights, check_policy_file, self_check
from spotlightd.trainer.settings import TrainerSettings, read_settings
from spotlightd.trainer.sharding import copy_whole

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def build_policy(settings: TrainerSettings) -> Policy:
    """Find the other ranks, load the model and attach the adapter, or make all of it train.

    An adapter is fp32 on a model in the run's dtype, as in workers. Where every weight trains, the
    weights are fp32 and blocks compute in the run's dtype: workers hold the weights so rounded.
    """
    section = settings.config.trainer
    torch.set_num_threads(section.threads)
    dtype = DTYPES[section.dtype]
    masters = section.train == "full" and dtype != torch.float32
    ranks = join_ranks(section.device, sharded=masters)
    stored = torch.float32 if masters else dtype
    model = load_model(Path(settings.model_dir), stored, ranks.device)
    if section.train == "lora":
        attach_lora(model, section.lora_rank, section.lora_alpha, settings.config.run.seed)
    check_equal_weights(model, ranks)
    sampler = settings.config.sampler
    tokens, channels = model.latent_shape(sampler.height, sampler.width, sampler.num_frames)
    clip_range = resolve_clip_range(section, tokens * channels)
    return Policy(model, section, clip_range, ranks, dtype if masters else None)


def restore(settings: TrainerSettings, actions: Actions) -> int:
    """Bring the policy to the version to go on from, and see that its files lie there.

    All ranks call it. Where that version's checkpoint is damaged, its adapter file still holds the
    policy; the optimizer then goes on from the newest good checkpoint before it.
    """
    state_dir, version = Path(settings.state_dir), settings.resume_version
    checkpoints, policy = state_dir / "checkpoints", actions.policy
    if version < 0:
        actions.publish(0)
        return 0
    if not checkpoints.is_dir() and version == 0:
        raise InputError(f"{checkpoints} is missing: restore it, or start in a new state directory")
    restored = load_checkpoint(checkpoints, version, policy)
    if restored != version:
        path = state_dir / "weights" / str(version) / "adapter.safetensors"
        bind_adapter(policy.model, read_adapter(path), str(path), copy_whole)
        logger.warning(
            "version %d is taken from %s, the optimizer's state from checkpoint %d",
            version,
            path,
            restored,
        )
    else:
        actions.write_policy(version)
    return version


def run(settings_file: Path) -> int:
    """Train until told to stop; return the exit code."""
    try:
        settings = read_settings(settings_file)
        policy = build_policy(settings)
        actions = Actions(settings, policy)
        version = restore(settings, actions)
        check_policy_file(actions, settings, version)
        if policy.ranks.leads:
            _lead(settings, Crew(actions), version)
        else:
            # Rank 0 is told to end, and tells the others.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            follow(actions)
        leave_ranks()
    except SpotlightError as error:
        print(f"trainer: {error}", file=sys.stderr)
        return int(error.exit_code)
    return 0


def _lead(settings: TrainerSettings, crew: Crew, version: int) -> None:
    self_check(crew, settings.config)
    link = TrainerLink(settings)
    loop = TrainerLoop(settings, crew, link, version)
    signal.signal(signal.SIGTERM, lambda *_: setattr(loop, "stopping", True))
    logger.info("trainer ready with version %d (pid %d)", version, os.getpid())
    loop.run()
    link.close()
