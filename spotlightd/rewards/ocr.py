"""Strict OCR reward: 1 - edit distance / length, against all that was read (NUMERICS)."""

from rapidfuzz.distance import Levenshtein


def normalise(text: str) -> str:
    """Return the text as it is compared: without white space, lower-cased."""
    return "".join(text.split()).lower()


def ocr(read: str, target: str) -> float:
    """Return the reward in [0, 1]."""
    wanted = normalise(target)
    distance = min(Levenshtein.distance(normalise(read), wanted), len(wanted))
    return 1.0 - distance / len(wanted)
