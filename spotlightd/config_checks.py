"""Options that contradict each other or would do nothing: each is an error with its cure."""

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from spotlightd.errors import ConfigError

if TYPE_CHECKING:
    from spotlightd.config import Config


class Unused(NamedTuple):
    """A stated key without effect."""

    key: str
    because: str
    """The other key's value that makes it so."""


def unused(config: "Config", stated: Collection[str]) -> list[Unused]:
    """Return what of `stated` (dotted keys) has no effect in `config`; defaults are not stated."""
    return [found for found in _rules(config) if found.key in stated]


def _rules(config: "Config") -> list[Unused]:
    trainer, planner = config.trainer, config.planner
    objective = f"trainer.objective = '{trainer.objective}'"
    rules: list[tuple[bool, str, tuple[str, ...]]] = [
        (trainer.train == "full", "trainer.train = 'full'", ("lora_rank", "lora_alpha")),
        (
            trainer.objective in ("flow_dppo", "nft"),
            objective,
            ("clip_range", "clip_range_nats"),
        ),
        (trainer.objective == "flow_dppo", objective, ("advantage_clip",)),
        (trainer.objective != "flow_dppo", objective, ("dppo_kl_threshold",)),
        (trainer.objective != "nft", objective, ("nft_beta",)),
        (not config.run.trainer_rolls_out, "run.trainer_rolls_out = false", ("max_batch",)),
        (
            planner.control_fraction == 0 and trainer.normalise_over == "control",
            "planner.control_fraction = 0",
            ("normalise_over",),
        ),
    ]
    found = [
        Unused(f"trainer.{key}", because)
        for applies, because, keys in rules
        if applies
        for key in keys
    ]
    if config.run.early_stop == 0:
        found.append(Unused("run.early_stop_reward", "run.early_stop = 0"))
    return found


def check_trainer(config: "Config") -> None:
    """Check what the trainer's keys say together; ConfigError names both keys and the cure."""
    run, sampler, trainer, rewards = config.run, config.sampler, config.trainer, config.rewards
    if trainer.objective == "grpo_guard" and sampler.sde_form == "flow_cps":
        raise ConfigError(
            "trainer.objective = 'grpo_guard' corrects a density's ratio, and with "
            "sampler.sde_form = 'flow_cps' the log-prob is none: choose flow_sde or dance_sde"
        )
    if trainer.ema_decay and not run.trainer_rolls_out:
        raise ConfigError(
            "trainer.ema_decay has its average evaluated by the trainer alone, and "
            "run.trainer_rolls_out = false: leave one of the two out"
        )
    if trainer.ranks > 1 and trainer.device not in ("auto", "cpu", "cuda"):
        raise ConfigError(
            f"trainer.device '{trainer.device}' is one device and trainer.ranks is "
            f"{trainer.ranks}: give auto, cuda or cpu"
        )
    if run.early_stop and not run.evaluate_every:
        raise ConfigError(
            "run.early_stop compares evaluations, and run.evaluate_every = 0 has none on the way: "
            "set it, to 5 say"
        )
    if run.early_stop and run.early_stop_reward not in (rewards.train, *rewards.report):
        raise ConfigError(
            f"run.early_stop_reward '{run.early_stop_reward}' is not scored: add it to "
            f"rewards.report {list(rewards.report)}"
        )
