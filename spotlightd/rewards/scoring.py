"""Rewards of images: one recogniser pass per batch serves all that compare text.

A reward is a finite number or an error with a name, never a zero that stands for a failure. An
image in which nothing can be read is no failure: its reward is 0.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from spotlightd.errors import SpotlightError
from spotlightd.rewards import NEEDS, check_options
from spotlightd.rewards.composition import grade
from spotlightd.rewards.grain import grain
from spotlightd.rewards.http import HttpReward, RewardServerError
from spotlightd.rewards.jpeg_size import jpeg_size
from spotlightd.rewards.ocr import normalise, ocr
from spotlightd.rewards.ocr_ctc import ocr_ctc
from spotlightd.rewards.ocr_substring import ocr_substring
from spotlightd.rewards.recogniser import Reading, Recogniser
from spotlightd.rewards.records import parse_record
from spotlightd.rewards.shapes import find_shapes
from spotlightd.wire.rewards import RewardOptions

if TYPE_CHECKING:
    from spotlightd.rewards.clip import ClipModel

READ_TEXT = tuple(name for name, needs in NEEDS.items() if needs == "text")


class Sample(NamedTuple):
    """What a reward may look at."""

    image_HWC: np.ndarray
    """uint8."""
    prompt: str
    target: str
    """Quoted text, or GenEval record, by the kind of prompt file."""
    reading: Reading | None
    """None where no reward compares text."""
    classes: list[int]
    """The target's characters as the recogniser numbers them, spaces left out."""


class Outcome(NamedTuple):
    """Scores of one image, or the error that kept them away."""

    scores: dict[str, float]
    text: str
    error: str


Batch = Sequence[Sample]


def _each(reward: Callable[[Sample], float]) -> Callable[[Batch], list[float]]:
    return lambda batch: [float(reward(sample)) for sample in batch]


def _read(sample: Sample) -> Reading:
    assert sample.reading is not None
    return sample.reading


class Scorer:
    """Scores batches with the named rewards.

    Raises ConfigError for a reward that is unknown or lacks an option.
    """

    def __init__(
        self, names: Sequence[str], options: RewardOptions | None = None, threads: int = 1
    ) -> None:
        self._options = options or RewardOptions()
        check_options(names, self._options)
        self._names = [name for name in names if name != "mix"]
        self._mixes = "mix" in names
        self._recogniser = Recogniser(threads) if any(name in READ_TEXT for name in names) else None
        self._rewards = {name: self._reward(name) for name in self._names}

    def _reward(self, name: str) -> Callable[[Batch], list[float]]:
        match name:
            case "ocr":
                return _each(lambda s: ocr(_read(s).text, s.target))
            case "ocr_ctc":
                return _each(lambda s: ocr_ctc(_read(s).log_probs_TC, s.classes))
            case "ocr_substring":
                return _each(lambda s: ocr_substring(_read(s).text, s.target))
            case "grain":
                return _each(lambda s: grain(s.image_HWC))
            case "jpeg_size":
                return _each(lambda s: jpeg_size(s.image_HWC))
            case "composition":
                return _each(lambda s: grade(parse_record(s.target), find_shapes(s.image_HWC))[0])
            case "composition_strict":
                return _each(lambda s: grade(parse_record(s.target), find_shapes(s.image_HWC))[1])
            case "http":
                server = HttpReward(self._options)
                return lambda batch: server.score(*_columns(batch))
            case "clip_score":
                clip = _clip_model(self._options.clip_score_model, "clip_score_model")
                return lambda batch: clip.clip_score(*_columns(batch)[:2])
            case "pickscore":
                picks = _clip_model(self._options.pickscore_model, "pickscore_model")
                return lambda batch: picks.pickscore(*_columns(batch)[:2])
        raise AssertionError(f"{name} is listed in NEEDS and has no code")

    def score(
        self,
        images: Sequence[np.ndarray],
        targets: Sequence[str],
        prompts: Sequence[str] | None = None,
    ) -> list[Outcome]:
        """Score images (uint8 [H, W, 1 or 3], all of one size).

        Args:
            targets: what each is compared with.
            prompts: for rewards that judge the whole prompt.
        """
        readings: Sequence[Reading | None] = [None] * len(images)
        if self._recogniser is not None:
            try:
                readings = self._recogniser.read(list(images))
            except (SpotlightError, ValueError, RuntimeError) as error:
                return [Outcome({}, "", f"recogniser failed: {error}")] * len(images)
        outcomes: dict[int, Outcome] = {}
        samples: dict[int, Sample] = {}
        for row, image in enumerate(images):
            prompt = prompts[row] if prompts is not None else ""
            sample = self._sample(image, prompt, targets[row], readings[row])
            if isinstance(sample, Outcome):
                outcomes[row] = sample
            else:
                samples[row] = sample
        scored = self._score_samples(list(samples.values()))
        outcomes.update(zip(samples, scored, strict=True))
        return [outcomes[row] for row in range(len(images))]

    def _sample(
        self, image: np.ndarray, prompt: str, target: str, reading: Reading | None
    ) -> Sample | Outcome:
        if reading is None or self._recogniser is None:
            return Sample(image, prompt, target, None, [])
        if not normalise(target):
            return Outcome({}, reading.text, "the target is empty: a reward has nothing to compare")
        try:
            classes = self._recogniser.classes_of("".join(target.split()))
        except SpotlightError as error:
            return Outcome({}, reading.text, str(error))
        return Sample(image, prompt, target, reading, classes)

    def _score_samples(self, batch: Batch) -> list[Outcome]:
        """Score together; where that fails, one by one, so that a bad sample fails alone."""
        if not batch:
            return []
        try:
            columns = {name: reward(batch) for name, reward in self._rewards.items()}
        except RewardServerError as error:
            # Asked again for each image, a server that is down would cost its time-outs each time.
            return [Outcome({}, _text(sample), str(error)) for sample in batch]
        except (SpotlightError, ValueError, RuntimeError, FloatingPointError) as error:
            if len(batch) > 1:
                return [self._score_samples([sample])[0] for sample in batch]
            return [Outcome({}, _text(batch[0]), str(error))]
        rows = [{n: float(c[i]) for n, c in columns.items()} for i in range(len(batch))]
        return [self._finish(row, _text(s)) for row, s in zip(rows, batch, strict=True)]

    def _finish(self, scores: dict[str, float], text: str) -> Outcome:
        if self._mixes:
            scores["mix"] = sum(w * scores[name] for name, w in self._options.weights.items())
        bad = [name for name, value in scores.items() if not math.isfinite(value)]
        if bad:
            return Outcome({}, text, f"reward {bad[0]} is not finite: {scores[bad[0]]}")
        return Outcome(scores, text, "")


def _clip_model(folder: str, option: str) -> "ClipModel":
    # Torch takes seconds to load: only who asks for such a reward waits for it.
    from spotlightd.rewards.clip import ClipModel

    return ClipModel(folder, option)


def _text(sample: Sample) -> str:
    return sample.reading.text if sample.reading is not None else ""


def _columns(batch: Batch) -> tuple[list[np.ndarray], list[str], list[str]]:
    return [s.image_HWC for s in batch], [s.prompt for s in batch], [s.target for s in batch]
