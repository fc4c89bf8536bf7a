"""Reads the text in images with PP-OCRv6's recogniser, called directly and batched.

A low image is one line. In a higher one the lines are found first (`lines.py`), and read one after
the other; their frames together are the reading of the whole image.

rapidocr's wheel carries the ONNX file; its own pipeline pads every crop to 320 pixels, which
costs three times as much. The characters are in the model's metadata; class 0 is CTC's blank and
the last class is a space.
"""

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import onnxruntime

from spotlightd.errors import InputError
from spotlightd.rewards.lines import LineFinder

INPUT_HEIGHT = 48
MAX_INPUT_WIDTH = 128
"""Wider lines are squeezed: on 32 x 128 images this reads as well as 192 and costs less."""
MAX_LINE_WIDTH = 640
"""The same for lines that were found in a larger image: a sentence needs the room."""
MAX_LINE_IMAGE_HEIGHT = 64
"""Up to this height an image is taken for one line of text; above, lines are looked for."""
BLANK = 0


@dataclass(frozen=True)
class Reading:
    """What was read in one image."""

    text: str
    log_probs_TC: np.ndarray
    """float32 [frames, classes]: log-probability of each class."""


class Recogniser:
    """Loads the model once; `read` scores a batch."""

    def __init__(self, threads: int = 1) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        path = find_model()
        self._session = onnxruntime.InferenceSession(
            path.as_posix(), options, providers=["CPUExecutionProvider"]
        )
        names = self._session.get_modelmeta().custom_metadata_map["character"].split("\n")
        self._characters = ["", *names, " "]
        self._index = {c: i for i, c in enumerate(self._characters) if i != BLANK}
        self._input = self._session.get_inputs()[0].name
        self._lines = LineFinder(threads)

    def read(self, images: list[np.ndarray]) -> list[Reading]:
        """Read images, each uint8 [height, width, 1 or 3], all of one size.

        Raises InputError for anything else.
        """
        for image in images:
            _check(image)
        if images[0].shape[0] > MAX_LINE_IMAGE_HEIGHT:
            return [self._read_lines(image) for image in images]
        return self._read_batch(images, MAX_INPUT_WIDTH)

    def _read_lines(self, image: np.ndarray) -> Reading:
        readings = [self._read_batch([line], MAX_LINE_WIDTH)[0] for line in self._lines.find(image)]
        if not readings:
            nothing = np.full((1, len(self._characters)), np.log(1e-30), np.float32)
            nothing[0, BLANK] = 0.0
            return Reading("", nothing)
        frames = np.concatenate([reading.log_probs_TC for reading in readings])
        # Targets are compared without spaces, and lines have several words: a space is a pause.
        frames[:, BLANK] = np.logaddexp(frames[:, BLANK], frames[:, -1])
        return Reading(" ".join(reading.text for reading in readings), frames)

    def _read_batch(self, images: list[np.ndarray], max_width: int) -> list[Reading]:
        batch = np.stack([_prepare(image, max_width) for image in images])
        (probabilities,) = self._session.run(None, {self._input: batch})
        log_probs = np.log(np.maximum(probabilities, 1e-30)).astype(np.float32)
        return [Reading(self._greedy(row), row) for row in log_probs]

    def classes_of(self, text: str) -> list[int]:
        """Return the class of each character. Raises InputError for one that it cannot read."""
        unknown = [c for c in text if c not in self._index]
        if unknown:
            raise InputError(f"the recogniser knows no {unknown[0]!r} (in target {text!r})")
        return [self._index[c] for c in text]

    def _greedy(self, log_probs_TC: np.ndarray) -> str:
        best = log_probs_TC.argmax(axis=1)
        kept = [c for i, c in enumerate(best) if c != BLANK and (i == 0 or c != best[i - 1])]
        return "".join(self._characters[c] for c in kept)


def find_model() -> Path:
    """Return the recogniser's file inside the installed rapidocr package."""
    import rapidocr

    folder = Path(rapidocr.__file__).parent / "models"
    found = sorted(folder.glob("PP-OCRv6_rec_small.onnx"))
    if not found:
        raise InputError(
            f"no PP-OCRv6 recogniser in {folder}: install rapidocr 3.10 (other releases ship "
            f"other models, whose rewards differ)"
        )
    return found[0]


def _check(image: np.ndarray) -> None:
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] not in (1, 3):
        raise InputError(f"expected a uint8 image [H, W, 1 or 3], got {image.dtype} {image.shape}")


def _prepare(image: np.ndarray, max_width: int) -> np.ndarray:
    height, width = image.shape[:2]
    target = min(max(round(INPUT_HEIGHT * width / height), 16), max_width)
    resized = cv2.resize(image, (target, INPUT_HEIGHT)).reshape(INPUT_HEIGHT, target, -1)
    scaled = resized.astype(np.float32) / 127.5 - 1.0
    return np.broadcast_to(scaled.transpose(2, 0, 1), (3, INPUT_HEIGHT, target))
