"""What a new session is told of the run."""

from spotlightd.config import Config
from spotlightd.wire.messages import Welcome


def welcome(config: Config, agent_id: str, epoch: int) -> Welcome:
    return Welcome(
        agent_id,
        epoch,
        config.fleet.heartbeat_s,
        None if config.fleet.commit_every == "auto" else config.fleet.commit_every,
        config.rewards.names,
        config.trainer.lora_rank if config.trainer.train == "lora" else 0,
        config.trainer.lora_alpha,
        config.trainer.dtype,
        config.rewards.options(),
        config.weights.transport,
        config.weights.uplink_mb_s * 1e6,
    )
