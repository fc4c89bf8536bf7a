"""What a run reads before it begins: its model's folder and its prompts, checked together."""

from pathlib import Path
from typing import NamedTuple

from spotlightd.config import Config
from spotlightd.models import resolve_model_dir
from spotlightd.planner.plan import PromptSpec
from spotlightd.prompts import load_prompts
from spotlightd.rewards import check_options, needs_of


class Inputs(NamedTuple):
    model_dir: Path
    prompts: list[PromptSpec]
    held_out: list[PromptSpec]


def read_inputs(config: Config) -> Inputs:
    """Return what a configuration names. Raises InputError for what is not as it must be."""
    model_dir = resolve_model_dir(config.run.model)
    rewards = config.rewards
    check_options(rewards.names, rewards.options())
    needs = needs_of(rewards.names)
    return Inputs(
        model_dir,
        load_prompts(config.run.prompts, needs),
        load_prompts(config.run.held_out, needs, "test"),
    )
