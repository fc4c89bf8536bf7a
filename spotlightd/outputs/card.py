"""The model card: what a reader of the exported files must know, from the run's own records."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import PurePath
from typing import NamedTuple

import msgspec

from spotlightd import __version__
from spotlightd.config import Config

SECTIONS = ("sampler", "planner", "rewards", "trainer")


class CardFacts(NamedTuple):
    """What the card says; times in seconds since 1970."""

    config: Config
    version: int
    """Policy version exported; also the number of updates behind it."""
    adapter_digest: str
    """BLAKE3 of the adapter file that the fleet sampled this version with."""
    held_out: Mapping[int, Mapping[str, float]]
    """Version -> mean score by reward on the held-out prompts."""
    gpu_seconds: Mapping[str, float]
    """By class: useful, wasted, loading, idle."""
    cost: float
    cost_all_reserved: float
    """What the same GPU-hours would have cost at the reserved price."""
    started_at: float
    updated_at: float
    merged: bool
    """Whether the folder holds a whole model rather than an adapter."""
    grid: bool


def model_card(facts: CardFacts) -> str:
    """Return README.md."""
    config = facts.config
    base = PurePath(config.run.model).name
    parts = [
        f"---\nlibrary_name: diffusers\nbase_model: {base}\ntags: [lora, grpo, spotlight]\n---",
        f"# {config.run.name}: {base} after {facts.version} updates",
        _usage(facts, base),
        "## Rewards on held-out prompts\n\n" + _rewards(facts),
    ]
    if facts.grid:
        parts.append("![before and after](samples.png)")
    parts += [
        "## Cost\n\n" + _cost(facts),
        "## Lineage\n\n" + _lineage(facts),
        *(_settings(config, section) for section in SECTIONS),
    ]
    return "\n\n".join(parts) + "\n"


def _usage(facts: CardFacts, base: str) -> str:
    if facts.merged:
        return "A whole model with the trained adapter merged in: load this folder with diffusers."
    run = facts.config.trainer
    return (
        f"A LoRA adapter (rank {run.lora_rank}, alpha {run.lora_alpha:g}) for {base}:\n\n"
        f"```python\npipe.load_lora_weights('.')\n```"
    )


def _rewards(facts: CardFacts) -> str:
    if not facts.held_out:
        return "None of the versions up to this one was evaluated."
    names = sorted({name for row in facts.held_out.values() for name in row})
    train = facts.config.rewards.train
    rows = [
        [str(version), *(f"{row[n]:.4f}" if n in row else "" for n in names)]
        for version, row in sorted(facts.held_out.items())
    ]
    header = ["version", *(f"**{n}** (trained)" if n == train else n for n in names)]
    return _table(header, rows)


def _cost(facts: CardFacts) -> str:
    ledger = facts.config.ledger
    hours = {name: f"{seconds / 3600:.3f}" for name, seconds in facts.gpu_seconds.items()}
    spent = (
        f"{facts.cost:.2f} {ledger.currency} at {ledger.reserved_price:g} a reserved and "
        f"{ledger.spot_price:g} a spot GPU-hour; the same GPU-hours all reserved would have cost "
        f"{facts.cost_all_reserved:.2f}."
    )
    return spent + "\n\n" + _table([f"GPU-hours {n}" for n in hours], [list(hours.values())])


def _lineage(facts: CardFacts) -> str:
    run = facts.config.run
    rows = [
        ["base model", f"`{run.model}`"],
        ["prompts / held out", f"`{run.prompts}` / `{run.held_out}`"],
        ["run and seed", f"`{run.name}`, {run.seed}"],
        ["policy version", f"{facts.version} of {run.iterations}"],
        ["adapter, BLAKE3", f"`{facts.adapter_digest}`"],
        ["trained", f"{_moment(facts.started_at)} to {_moment(facts.updated_at)}"],
        ["with", f"Spotlight {__version__}"],
    ]
    return _table(["what", "which"], rows)


def _settings(config: Config, section: str) -> str:
    values = msgspec.to_builtins(getattr(config, section))
    rows = [[f"`{section}.{key}`", f"`{value}`"] for key, value in values.items()]
    return f"## Settings: {section}\n\n" + _table(["key", "value"], rows)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
