"""Options that contradict each other or would do nothing: each is an error with its cure."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from spotlightd.errors import ConfigError

if TYPE_CHECKING:
    from spotlightd.config import Config


class Unused(NamedTuple):
    """A key that does nothing in a configuration, whatever its value."""

    key: str
    switch: str
    """The key whose value makes it so."""
    because: str
    """That value, in words."""
    cure: str = "leave it out"


def unused(config: "Config") -> Iterator[Unused]:
    """Yield every key without effect in `config`, stated or not."""
    yield from _unused_by_trainer(config)
    yield from _unused_by_planner(config)
    yield from _unused_rewards(config)
    if config.run.early_stop == 0:
        yield Unused("run.early_stop_reward", "run.early_stop", "run.early_stop = 0")


def _unused_by_trainer(config: "Config") -> Iterator[Unused]:
    trainer, objective = config.trainer, config.trainer.objective
    rules: list[tuple[bool, str, object, tuple[str, ...]]] = [
        (trainer.train == "full", "trainer.train", "full", ("lora_rank", "lora_alpha")),
        (
            objective in ("flow_dppo", "nft"),
            "trainer.objective",
            objective,
            ("clip_range", "clip_range_nats"),
        ),
        (objective == "flow_dppo", "trainer.objective", objective, ("advantage_clip",)),
        (objective != "flow_dppo", "trainer.objective", objective, ("dppo_kl_threshold",)),
        (objective != "nft", "trainer.objective", objective, ("nft_beta",)),
        (not config.run.trainer_rolls_out, "run.trainer_rolls_out", False, ("max_batch",)),
        (
            config.planner.control_fraction == 0 and trainer.normalise_over == "control",
            "planner.control_fraction",
            0,
            ("normalise_over",),
        ),
    ]
    for applies, switch, value, keys in rules:
        if applies:
            for key in keys:
                yield Unused(f"trainer.{key}", switch, f"{switch} = {_toml(value)}")


def _unused_by_planner(config: "Config") -> Iterator[Unused]:
    switch, mode = "planner.mode", config.planner.mode
    because, fixed = f"{switch} = {_toml(mode)}", mode in ("critical_path", "fixed")
    if not fixed:
        near = "did you mean 'planner.max_candidates'?" if mode == "bandit" else "leave it out"
        yield Unused("planner.candidates", switch, because, near)
        yield Unused("planner.tail_steps", switch, because)
    if mode != "bandit":
        near = "did you mean 'planner.candidates'?" if fixed else "leave it out"
        yield Unused("planner.max_candidates", switch, because, near)


def _unused_rewards(config: "Config") -> Iterator[Unused]:
    rewards, switch = config.rewards, "rewards.report"
    for reward, keys in (
        ("http", ("http_url", "http_format", "http_timeout_s", "http_retries")),
        ("clip_score", ("clip_score_model",)),
        ("pickscore", ("pickscore_model",)),
    ):
        if reward not in rewards.names:
            cure = f"add '{reward}' to {switch}, or leave it out"
            for key in keys:
                yield Unused(f"rewards.{key}", switch, f"no '{reward}' reward", cure)
    if "mix" not in rewards.names:
        because = f"rewards.train = {_toml(rewards.train)}"
        yield Unused("rewards.weights", "rewards.train", because, "set rewards.train = 'mix'")
    if rewards.http_format != "geneval_pickle":
        because = f"rewards.http_format = {_toml(rewards.http_format)}"
        yield Unused("rewards.trust_pickle", "rewards.http_format", because)


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def check_planner(config: "Config") -> None:
    """Check what the planner's keys say together; ConfigError names both keys and the cure."""
    planner, size = config.planner, config.planner.train_size
    key = "max_candidates" if planner.mode == "bandit" else "candidates"
    if getattr(planner, key) < planner.group_size and planner.mode != "off":
        raise ConfigError(
            f"planner.{key} {getattr(planner, key)} is below planner.group_size "
            f"{planner.group_size}: raise it, or set planner.mode = 'off'"
        )
    if planner.rank_by not in config.rewards.names:
        raise ConfigError(
            f"planner.rank_by '{planner.rank_by}' is not scored: add it to rewards.report "
            f"{list(config.rewards.report)}"
        )
    if size == 1 or size > planner.group_size:
        raise ConfigError(
            f"planner.train_size {size} of planner.group_size {planner.group_size}: at least 2 "
            f"rollouts of a group must train, and at most all of them; 0 is all"
        )
    if size and config.trainer.normalise_over == "control":
        raise ConfigError(
            f"trainer.normalise_over = 'control' takes the mean of a group's control seeds, and "
            f"planner.train_size = {size} leaves most of them out: leave one of the two out"
        )


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
