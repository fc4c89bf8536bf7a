"""The scorer process (`python -m spotlightd.rewards.scorer FD`): images in, rewards out."""

import io
import sys
import time

import numpy as np
from PIL import Image, UnidentifiedImageError

from spotlightd.childproc import Channel, enter_child
from spotlightd.errors import SpotlightError
from spotlightd.rewards.scoring import Outcome, Scorer
from spotlightd.wire import pipe
from spotlightd.wire.codec import Buffer
from spotlightd.wire.worker import Exit, Fatal, Score, Scored, Scores

MAX_PIXELS = 64 * 2**20


def decode_image(png: Buffer) -> np.ndarray:
    """Return uint8 [H, W, 1 or 3]. Raises ValueError for what is no image of bounded size."""
    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"image of {image.width} x {image.height} is too large")
            converted = image if image.mode in ("L", "RGB") else image.convert("RGB")
            array = np.asarray(converted)
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise ValueError(f"not a PNG image: {error}") from None
    return array if array.ndim == 3 else array[..., None]


def answer(scorer: Scorer, message: Score, frames: list[Buffer]) -> tuple[Scored, ...]:
    """Score one message; images that cannot be decoded fail alone."""
    images: dict[int, np.ndarray] = {}
    outcomes: dict[int, Outcome] = {}
    for index, frame in enumerate(frames):
        try:
            images[index] = decode_image(frame)
        except ValueError as error:
            outcomes[index] = Outcome({}, "", str(error))
    for shape in {image.shape for image in images.values()}:
        rows = [i for i, image in images.items() if image.shape == shape]
        targets = [message.items[i].target for i in rows]
        scored = scorer.score([images[i] for i in rows], targets)
        outcomes.update(zip(rows, scored, strict=True))
    return tuple(
        Scored(item.request_id, out.scores, out.text[:2000], out.error[:2000])
        for item, out in ((item, outcomes[i]) for i, item in enumerate(message.items))
    )


def main(argv: list[str]) -> int:
    channel = Channel(enter_child(argv), receives=pipe.TO_SCORER, sends=pipe.FROM_SCORER)
    scorer: Scorer | None = None
    while True:
        try:
            received = channel.receive()
            assert received is not None
            message, frames = received
            if isinstance(message, Exit):
                return 0
            began = time.monotonic()
            scorer = scorer or Scorer(message.rewards)
            scored = answer(scorer, message, frames)
            channel.send(Scores(scored, time.monotonic() - began))
        except EOFError:
            return 0
        except SpotlightError as error:
            channel.send(Fatal(str(error)[:2000]))
            return int(error.exit_code)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
