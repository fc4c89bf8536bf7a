"""Continuous OCR reward: exp(log p(target) / length) under the recogniser's CTC output.

It never ties, so it ranks seeds; and it falls where the edit distance is being hacked.
"""

import numpy as np

from spotlightd.rewards.recogniser import BLANK


def ctc_log_prob(log_probs_TC: np.ndarray, classes: list[int]) -> float:
    """Return log p(classes), summed over all alignments (Graves et al., ICML 2006, eq. 6-8).

    Args:
        log_probs_TC: log-probability of each class at each frame.
        classes: label sequence without blanks.
    """
    extended = [BLANK]
    for label in classes:
        extended += [label, BLANK]
    # A label may be reached past a blank only from a different label.
    skips = np.array(
        [i >= 2 and c != BLANK and c != extended[i - 2] for i, c in enumerate(extended)]
    )
    emitted = log_probs_TC[:, extended].astype(np.float64)
    alpha = np.full(len(extended), -np.inf)
    alpha[:2] = emitted[0, :2]
    for frame in emitted[1:]:
        one_back = np.concatenate([[-np.inf], alpha[:-1]])
        two_back = np.where(skips, np.concatenate([[-np.inf, -np.inf], alpha[:-2]]), -np.inf)
        alpha = np.logaddexp(np.logaddexp(alpha, one_back), two_back) + frame
    return float(np.logaddexp(alpha[-1], alpha[-2])) if classes else float(alpha[0])


def ocr_ctc(log_probs_TC: np.ndarray, classes: list[int]) -> float:
    """Return the reward in [0, 1]: the geometric mean probability of a character."""
    return float(np.exp(ctc_log_prob(log_probs_TC, classes) / len(classes)))
