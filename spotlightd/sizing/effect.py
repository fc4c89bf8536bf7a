"""Keys of planner and rewards that are stated and would do nothing, each with its cure."""

from collections.abc import Mapping
from typing import NamedTuple

from spotlightd.config import Config
from spotlightd.errors import ConfigError


class Effectless(NamedTuple):
    key: str
    because: str
    instead: str
    """What to do."""


def refuse_effectless(config: Config, origins: Mapping[str, str]) -> None:
    """Raise ConfigError for the first stated key without effect.

    Args:
        origins: where each value is from; "default" is not stated.
    """
    for found in _rules(config):
        if not origins.get(found.key, "default").startswith("default"):
            raise ConfigError(
                f"{origins[found.key]}: '{found.key}' has no effect with {found.because}; "
                f"{found.instead}"
            )


def _rules(config: Config) -> list[Effectless]:
    mode, rewards = config.planner.mode, config.rewards
    because = f"planner.mode = '{mode}'"
    fixed = ("critical_path", "fixed")
    found = []
    if mode not in fixed:
        near = "did you mean 'planner.max_candidates'?" if mode == "bandit" else "leave it out"
        found.append(Effectless("planner.candidates", because, near))
        found.append(Effectless("planner.tail_steps", because, "leave it out"))
    if mode != "bandit":
        near = "did you mean 'planner.candidates'?" if mode in fixed else "leave it out"
        found.append(Effectless("planner.max_candidates", because, near))
    for reward, keys in (
        ("http", ("http_url", "http_format", "http_timeout_s", "http_retries")),
        ("clip_score", ("clip_score_model",)),
        ("pickscore", ("pickscore_model",)),
    ):
        if reward not in rewards.names:
            cure = f"add '{reward}' to rewards.report, or leave it out"
            found += [Effectless(f"rewards.{k}", f"no '{reward}' reward", cure) for k in keys]
    if "mix" not in rewards.names:
        cure = "set rewards.train = 'mix'"
        found.append(Effectless("rewards.weights", f"rewards.train = '{rewards.train}'", cure))
    if rewards.http_format != "geneval_pickle":
        format_is = f"rewards.http_format = '{rewards.http_format}'"
        found.append(Effectless("rewards.trust_pickle", format_is, "leave it out"))
    return found
