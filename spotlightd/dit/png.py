"""Images as they travel: PNG."""

import io

import numpy as np
from PIL import Image


def encode_png(image_HWC: np.ndarray) -> bytes:
    """Return a uint8 image [height, width, 1 or 3] as PNG."""
    grey = image_HWC.shape[-1] == 1
    buffer = io.BytesIO()
    Image.fromarray(image_HWC[..., 0] if grey else image_HWC).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
