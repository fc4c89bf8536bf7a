"""Background grain: standard deviation of the image's margins, in grey levels. An alarm.

A policy that hacks its reward tends to make the paper noisy; the margins hold no text.
"""

import numpy as np

MARGIN_ROWS = 3


def grain(image_HWC: np.ndarray) -> float:
    """Return the deviation of the top and bottom rows of a uint8 image from their own mean."""
    grey = image_HWC.astype(np.float64).mean(axis=2)
    return float(np.concatenate([grey[:MARGIN_ROWS], grey[-MARGIN_ROWS:]]).std())
