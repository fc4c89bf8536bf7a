"""Rewards of images: one recogniser pass per batch serves all of them.

A reward is a finite number or an error with a name, never a zero that stands for a failure. An
image in which nothing can be read is no failure: its reward is 0.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from spotlightd.errors import SpotlightError
from spotlightd.rewards import check_names
from spotlightd.rewards.grain import grain
from spotlightd.rewards.ocr import normalise, ocr
from spotlightd.rewards.ocr_ctc import ocr_ctc
from spotlightd.rewards.ocr_substring import ocr_substring
from spotlightd.rewards.recogniser import Reading, Recogniser


class Sample(NamedTuple):
    """What a reward may look at."""

    image_HWC: np.ndarray
    """uint8."""
    target: str
    reading: Reading
    classes: list[int]
    """The target's characters as the recogniser numbers them, spaces left out."""


class Outcome(NamedTuple):
    """Scores of one image, or the error that kept them away."""

    scores: dict[str, float]
    text: str
    error: str


REWARDS: dict[str, Callable[[Sample], float]] = {
    "ocr": lambda s: ocr(s.reading.text, s.target),
    "ocr_ctc": lambda s: ocr_ctc(s.reading.log_probs_TC, s.classes),
    "ocr_substring": lambda s: ocr_substring(s.reading.text, s.target),
    "grain": lambda s: grain(s.image_HWC),
}


class Scorer:
    """Scores batches with the named rewards."""

    def __init__(self, names: Sequence[str], threads: int = 1) -> None:
        check_names(names)
        self._rewards = {name: REWARDS[name] for name in names}
        self._recogniser = Recogniser(threads)

    def score(self, images: Sequence[np.ndarray], targets: Sequence[str]) -> list[Outcome]:
        """Score images (uint8 [H, W, 1 or 3], all of one size) against their targets."""
        try:
            readings = self._recogniser.read(list(images))
        except (SpotlightError, ValueError, RuntimeError) as error:
            return [Outcome({}, "", f"recogniser failed: {error}")] * len(images)
        return [
            self._score_one(image, target, reading)
            for image, target, reading in zip(images, targets, readings, strict=True)
        ]

    def _score_one(self, image: np.ndarray, target: str, reading: Reading) -> Outcome:
        wanted = "".join(target.split())
        if not normalise(target):
            return Outcome({}, reading.text, "the target is empty: a reward has nothing to compare")
        try:
            sample = Sample(image, target, reading, self._recogniser.classes_of(wanted))
            scores = {name: float(reward(sample)) for name, reward in self._rewards.items()}
        except (SpotlightError, ValueError, FloatingPointError) as error:
            return Outcome({}, reading.text, str(error))
        bad = [name for name, value in scores.items() if not math.isfinite(value)]
        if bad:
            return Outcome({}, reading.text, f"reward {bad[0]} is not finite: {scores[bad[0]]}")
        return Outcome(scores, reading.text, "")
