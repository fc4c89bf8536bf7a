"""Size of the image as JPEG, in kB at quality 95 (DDPO, arXiv 2305.13301, incompressibility).

Larger is better. To reward simple images, weigh it below 0 in a mix.
"""

import io

import numpy as np
from PIL import Image

QUALITY = 95


def jpeg_size(image_HWC: np.ndarray) -> float:
    """Return the reward of a uint8 image."""
    image = Image.fromarray(image_HWC[..., 0] if image_HWC.shape[2] == 1 else image_HWC)
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=QUALITY)
    return len(buffer.getvalue()) / 1000
