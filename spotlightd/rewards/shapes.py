"""Finds coloured circles, squares and triangles on a plain ground, for the task "shapes".

It stands where GenEval has a detector of everyday objects; both give `Detection`s. A shape is a
connected patch that differs from the ground; its class is the best-correlated template, its colour
the nearest of seven.
"""

from functools import cache

import cv2
import numpy as np
from PIL import Image, ImageDraw
from scipy import ndimage

from spotlightd.rewards.composition import Detection

CLASSES = ("circle", "square", "triangle")
PALETTE = {
    "red": (214, 39, 40),
    "orange": (255, 140, 0),
    "yellow": (240, 210, 30),
    "green": (40, 160, 60),
    "blue": (40, 90, 220),
    "purple": (140, 60, 180),
    "pink": (250, 120, 190),
}
MIN_CONTRAST = 60.0
"""Distance from the ground in grey levels, over three channels, from which a pixel is a shape's."""
MIN_PIXELS = 12
TEMPLATE = 24
OVERSAMPLING = 8


def draw_shape(kind: str, size: int) -> np.ndarray:
    """Return how much of each pixel the shape covers, float32 in [0, 1], [size, size]."""
    side = size * OVERSAMPLING - 1
    image = Image.new("L", (side + 1, side + 1), 0)
    draw = ImageDraw.Draw(image)
    match kind:
        case "circle":
            draw.ellipse((0, 0, side, side), fill=255)
        case "square":
            draw.rectangle((0, 0, side, side), fill=255)
        case "triangle":
            draw.polygon([(side / 2, 0), (side, side), (0, side)], fill=255)
        case _:
            raise ValueError(f"no shape '{kind}', only {', '.join(CLASSES)}")
    small = image.resize((size, size), Image.Resampling.BOX)
    return np.asarray(small, np.float32) / 255


def find_shapes(image_HWC: np.ndarray) -> list[Detection]:
    """Return the shapes of a uint8 RGB image. An image without any has none: that is no error."""
    pixels = np.broadcast_to(image_HWC, (*image_HWC.shape[:2], 3)).astype(np.float32)
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    contrast = np.linalg.norm(pixels - np.median(border, axis=0), axis=2)
    labels, _ = ndimage.label(contrast > MIN_CONTRAST)
    found = []
    for number, region in enumerate(ndimage.find_objects(labels), start=1):
        mask = labels[region] == number
        if mask.sum() >= MIN_PIXELS:
            found.append(_describe(pixels[region], contrast[region] * mask, region))
    return found


def _describe(pixels: np.ndarray, contrast: np.ndarray, region: tuple[slice, slice]) -> Detection:
    soft = np.clip(contrast / np.percentile(contrast[contrast > 0], 75), 0, 1)
    color = pixels[soft > 0.8].mean(axis=0)
    name = min(PALETTE, key=lambda c: float(np.linalg.norm(color - PALETTE[c])))
    shape = cv2.resize(soft, (TEMPLATE, TEMPLATE), interpolation=cv2.INTER_AREA)
    scores = {kind: _correlation(shape, template) for kind, template in _templates().items()}
    best = max(scores, key=lambda kind: scores[kind])
    rows, columns = region
    box = (columns.start, rows.start, columns.stop, rows.stop)
    return Detection(best, name, box, scores[best])


@cache
def _templates() -> dict[str, np.ndarray]:
    return {kind: draw_shape(kind, TEMPLATE) for kind in CLASSES}


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Agreement in [-1, 1]; a full square has no variance of its own, so both keep their mean."""
    centred = a - 0.5, b - 0.5
    lengths = [float(np.linalg.norm(part)) for part in centred]
    return float((centred[0] * centred[1]).sum() / max(lengths[0] * lengths[1], 1e-6))
