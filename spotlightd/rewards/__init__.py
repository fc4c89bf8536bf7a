"""Rewards by name. This module is light: the daemon checks names without loading a model."""

import difflib
from collections.abc import Sequence

from spotlightd.errors import ConfigError

NAMES = ("ocr", "ocr_ctc", "ocr_substring", "grain")
"""Every reward that `scoring.REWARDS` computes."""


def check_names(names: Sequence[str]) -> None:
    """Raise ConfigError for a reward that does not exist, naming the nearest that does."""
    for name in names:
        if name not in NAMES:
            close = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.4)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            raise ConfigError(f"unknown reward '{name}'{hint} (known: {', '.join(NAMES)})")
