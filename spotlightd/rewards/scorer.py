"""The scorer process (`python -m spotlightd.rewards.scorer FD`): images in, rewards out."""

import io
import sys
import time
from collections.abc import Sequence
from statistics import fmean

import numpy as np
from PIL import Image, ImageSequence, UnidentifiedImageError

from spotlightd.childproc import Channel, enter_child
from spotlightd.errors import SpotlightError
from spotlightd.rewards.pool import Pool
from spotlightd.rewards.scoring import Outcome, Scorer
from spotlightd.rewards.versions import scorer_version
from spotlightd.wire import pipe
from spotlightd.wire.codec import Buffer
from spotlightd.wire.worker import Exit, Fatal, Score, Scored, Scores

MAX_PIXELS = 64 * 2**20


def decode_frames(png: Buffer) -> list[np.ndarray]:
    """Return an image, or a video's frames, each uint8 [H, W, 1 or 3].

    Raises ValueError for what is no image of bounded size.
    """
    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
            count = getattr(image, "n_frames", 1)
            if image.width * image.height * count > MAX_PIXELS:
                raise ValueError(f"image of {image.width} x {image.height} x {count} is too large")
            frames = [_array(frame) for frame in ImageSequence.Iterator(image)]
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise ValueError(f"not a PNG image: {error}") from None
    return frames


def _array(image: Image.Image) -> np.ndarray:
    converted = image if image.mode in ("L", "RGB") else image.convert("RGB")
    array = np.asarray(converted)
    return array if array.ndim == 3 else array[..., None]


def answer(scorer: Scorer, message: Score, frames: list[Buffer]) -> tuple[Scored, ...]:
    """Score one message; images that cannot be decoded fail alone."""
    pictures: list[tuple[int, np.ndarray]] = []
    outcomes: dict[int, list[Outcome]] = {index: [] for index in range(len(frames))}
    for index, frame in enumerate(frames):
        try:
            pictures += [(index, picture) for picture in decode_frames(frame)]
        except ValueError as error:
            outcomes[index].append(Outcome({}, "", str(error)))
    for shape in {picture.shape for _, picture in pictures}:
        alike = [(index, picture) for index, picture in pictures if picture.shape == shape]
        items = [message.items[index] for index, _ in alike]
        scored = scorer.score(
            [picture for _, picture in alike], [i.target for i in items], [i.prompt for i in items]
        )
        for (index, _), outcome in zip(alike, scored, strict=True):
            outcomes[index].append(outcome)
    combined = [over_frames(outcomes[index]) for index in range(len(frames))]
    return tuple(
        Scored(item.request_id, out.scores, out.text[:2000], out.error[:2000])
        for item, out in zip(message.items, combined, strict=True)
    )


def over_frames(outcomes: Sequence[Outcome]) -> Outcome:
    """Return a video's outcome: means over all frames, those that score 0 too, or its error."""
    failed = next((out for out in outcomes if out.error), None)
    if failed is not None or len(outcomes) == 1:
        return failed or outcomes[0]
    names = outcomes[0].scores
    means = {name: fmean(out.scores[name] for out in outcomes) for name in names}
    return Outcome(means, " | ".join(dict.fromkeys(out.text for out in outcomes)), "")


def main(argv: list[str]) -> int:
    channel = Channel(enter_child(argv), receives=pipe.TO_SCORER, sends=pipe.FROM_SCORER)
    scorer: Scorer | None = None
    pool, version = Pool(), ""
    while True:
        try:
            received = channel.receive()
            assert received is not None
            message, frames = received
            if isinstance(message, Exit):
                pool.close()
                return 0
            began = time.monotonic()
            if message.options.processes > 1:
                scored, version = pool.score(message, frames)
            else:
                scorer = scorer or Scorer(message.rewards, message.options)
                scored = answer(scorer, message, frames)
                version = version or scorer_version(message.rewards, message.options)
            channel.send(Scores(scored, time.monotonic() - began, version))
        except EOFError:
            return 0
        except SpotlightError as error:
            channel.send(Fatal(str(error)[:2000]))
            return int(error.exit_code)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
