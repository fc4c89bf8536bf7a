"""Images as they travel: PNG, and animated PNG for videos."""

import io

import numpy as np
from PIL import Image

FRAME_MS = 62
"""Of an animated PNG: about 16 frames a second, Wan's own rate."""


def encode_png(image: np.ndarray) -> bytes:
    """Return a uint8 image [height, width, 1 or 3], or video [frames, ...], as PNG."""
    first, *rest = [
        Image.fromarray(frame[..., 0] if frame.shape[-1] == 1 else frame)
        for frame in (image if image.ndim == 4 else [image])
    ]
    buffer = io.BytesIO()
    more = {"save_all": True, "append_images": rest, "duration": FRAME_MS} if rest else {}
    first.save(buffer, "PNG", compress_level=1, **more)
    return buffer.getvalue()
