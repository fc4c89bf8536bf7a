"""`spotlightd check`: everything that can be known of a run before anything is started."""

import difflib
from collections.abc import Iterator

from spotlightd.config import Config
from spotlightd.errors import UsageError
from spotlightd.prompts import load_prompts
from spotlightd.rewards import check_options, needs_of
from spotlightd.sizing.estimate import GPUS, estimate
from spotlightd.sizing.report import assumptions, plan_lines, warnings
from spotlightd.sizing.shapes import find_size


def check_run(
    config: Config,
    gpu_name: str,
    reserved: int | None,
    spot: int,
) -> Iterator[str]:
    """Yield the lines of the plan.

    Raises:
        ConfigError: a reward that lacks an option.
        InputError: prompts or a model that cannot be used.
        UsageError: an unknown GPU.
    """
    rewards = config.rewards
    check_options(rewards.names, rewards.options())
    needs = needs_of(rewards.names)
    prompts = load_prompts(config.run.prompts, needs)
    held_out = load_prompts(config.run.held_out, needs, "test")
    if gpu_name not in GPUS:
        close = difflib.get_close_matches(gpu_name, GPUS, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise UsageError(f"unknown GPU '{gpu_name}'{hint} (known: {', '.join(GPUS)})")
    size, gpu = find_size(config.run.model), GPUS[gpu_name]
    needed = estimate(config, size, gpu, reserved, spot)
    planned = max(reserved or 0, needed.trainer_gpus)
    lines = plan_lines(config, size, gpu, needed, planned, spot)
    scored = ", ".join(rewards.names)
    lines.insert(1, ("prompts", f"{len(prompts)} to train, {len(held_out)} held out; {scored}"))
    for label, value in lines:
        yield f"{label:<17} {value}"
    yield ""
    for text in assumptions(config, size, gpu):
        yield f"assumed: {text}"
    for text in warnings(config, needed):
        yield f"warning: {text}"
