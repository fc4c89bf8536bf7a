"""Rewards by name. This module is light: the daemon checks names without loading a model."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Literal

from spotlightd.errors import ConfigError
from spotlightd.wire.rewards import RewardOptions

Needs = Literal["text", "record", "prompt", "image"]
"""What a reward compares the image with: the prompt's quoted text, its GenEval record, the whole
prompt, or nothing."""

NEEDS: dict[str, Needs] = {
    "ocr": "text",
    "ocr_ctc": "text",
    "ocr_substring": "text",
    "grain": "image",
    "jpeg_size": "image",
    "composition": "record",
    "composition_strict": "record",
    "http": "prompt",
    "clip_score": "prompt",
    "pickscore": "prompt",
    "mix": "image",
}
"""Every reward that there is. `mix` is the weighted sum of others."""
NAMES = tuple(NEEDS)


def check_names(names: Sequence[str]) -> None:
    """Raise ConfigError for a reward that does not exist, naming the nearest that does."""
    for name in names:
        if name not in NAMES:
            close = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.4)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            raise ConfigError(f"unknown reward '{name}'{hint} (known: {', '.join(NAMES)})")


def check_options(names: Sequence[str], options: RewardOptions) -> None:
    """Raise ConfigError for a reward that is unknown, or that lacks an option it needs."""
    check_names((*names, *options.weights))
    for name, option in (
        ("http", "http_url"),
        ("clip_score", "clip_score_model"),
        ("pickscore", "pickscore_model"),
        ("mix", "weights"),
    ):
        if name in names and not getattr(options, option):
            raise ConfigError(f"reward '{name}' needs rewards.{option}, which is not set")
    if "mix" in options.weights:
        raise ConfigError("rewards.weights cannot hold 'mix': it is what they make")
    missing = [name for name in options.weights if name not in names]
    if missing:
        raise ConfigError(f"rewards.weights names '{missing[0]}', which is not scored")
    if options.http_format == "geneval_pickle" and not options.trust_pickle:
        raise ConfigError(
            "rewards.http_format = 'geneval_pickle' reads pickled answers, which can run code of "
            "the server: set rewards.trust_pickle = true if you run that server yourself, on this "
            "machine"
        )


def needs_of(names: Iterable[str]) -> set[Needs]:
    """Return what the prompts must bring for these rewards."""
    return {NEEDS[name] for name in names}
