"""OCR reward as flow_grpo publishes it: full marks wherever the target occurs in what was read.

For comparison with published numbers only. It can be hacked: a policy learns to append letters
("OPENN") for full reward.
"""

from spotlightd.rewards.ocr import normalise, ocr


def ocr_substring(read: str, target: str) -> float:
    """Return the reward in [0, 1]."""
    return 1.0 if normalise(target) in normalise(read) else ocr(read, target)
