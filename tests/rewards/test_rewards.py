"""Rewards by their definitions, and on rendered words."""

import itertools
import math

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from spotlightd.errors import ConfigError, InputError
from spotlightd.rewards import NAMES, check_names
from spotlightd.rewards.grain import grain
from spotlightd.rewards.ocr import ocr
from spotlightd.rewards.ocr_ctc import ctc_log_prob, ocr_ctc
from spotlightd.rewards.ocr_substring import ocr_substring
from spotlightd.rewards.recogniser import Recogniser
from spotlightd.rewards.scoring import READ_TEXT, Scorer

SCORED = (*READ_TEXT, "grain")
WORDS = ["OPEN", "EXIT", "HOTEL", "MUSEUM", "B52", "24HOURS", "TAXI", "PARKING"]


def picture(word: str) -> np.ndarray:
    image = Image.new("L", (128, 32), 230)
    ImageDraw.Draw(image).text((4, 2), word, fill=20, font=ImageFont.load_default(24))
    return np.asarray(image)[..., None]


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    return Scorer(SCORED)


@pytest.mark.parametrize(
    ("read", "target", "expected"),
    [
        ("OPEN", "OPEN", 1.0),
        ("open ", "OPEN", 1.0),
        ("O P\tEN", "open", 1.0),
        ("OPIN", "OPEN", 0.75),
        ("OPENN", "OPEN", 0.75),
        ("", "OPEN", 0.0),
        ("SOMETHING ELSE", "OPEN", 0.0),
    ],
)
def test_strict_reward(read, target, expected):
    assert ocr(read, target) == pytest.approx(expected)


def test_the_published_rule_rewards_appended_letters_and_the_strict_one_does_not():
    assert ocr_substring("OPENN", "OPEN") == 1.0
    assert ocr("OPENN", "OPEN") < 1.0
    assert ocr_substring("OPIN", "OPEN") == ocr("OPIN", "OPEN")


@pytest.mark.parametrize("labels", [[1], [1, 2], [1, 1], [2, 1, 2]])
def test_ctc_equals_the_sum_over_all_alignments(labels):
    generator = np.random.default_rng(3)
    probabilities = generator.dirichlet(np.ones(3), size=5)
    total = 0.0
    for path in itertools.product(range(3), repeat=5):
        collapsed = [c for i, c in enumerate(path) if c and (i == 0 or path[i - 1] != c)]
        if collapsed == labels:
            total += math.prod(probabilities[t, c] for t, c in enumerate(path))
    assert ctc_log_prob(np.log(probabilities), labels) == pytest.approx(math.log(total))


def test_the_ctc_reward_never_ties_and_falls_with_wrong_letters(scorer):
    (reading,) = Recogniser().read([picture("HOTEL")])
    classes = Recogniser().classes_of
    right, wrong = (ocr_ctc(reading.log_probs_TC, classes(w)) for w in ("HOTEL", "HOTAL"))
    assert right > 0.9 > wrong > 0.0


def test_rendered_words_are_read(scorer):
    outcomes = scorer.score([picture(word) for word in WORDS], WORDS)
    assert [out.error for out in outcomes] == [""] * len(WORDS)
    assert sum(out.scores["ocr"] == 1.0 for out in outcomes) >= 7
    assert all(set(out.scores) == set(SCORED) for out in outcomes)


def test_scores_do_not_depend_on_the_batch(scorer):
    images = [picture(word) for word in WORDS]
    together = scorer.score(images, WORDS)
    alone = [scorer.score([i], [w])[0] for i, w in zip(images, WORDS, strict=True)]
    for a, b in zip(together, alone, strict=True):
        assert a.text == b.text
        assert a.scores == pytest.approx(b.scores, abs=1e-5)


def test_a_blank_image_is_a_reward_of_zero_and_no_error(scorer):
    (out,) = scorer.score([np.full((32, 128, 1), 230, np.uint8)], ["OPEN"])
    assert out.error == ""
    assert out.scores["ocr"] == 0.0
    assert out.scores["ocr_ctc"] < 0.05


@pytest.mark.parametrize(
    ("image", "target", "message"),
    [
        (np.zeros((32, 128), np.uint8), "A", "recogniser failed: expected a uint8 image"),
        (np.zeros((32, 128, 1), np.float32), "A", "recogniser failed: expected a uint8 image"),
        (np.zeros((32, 128, 1), np.uint8), " ", "the target is empty"),
        (np.zeros((32, 128, 1), np.uint8), "A\ue000", "the recogniser knows no"),
    ],
)
def test_a_failure_is_an_error_and_never_a_zero(scorer, image, target, message):
    (out,) = scorer.score([image], [target])
    assert message in out.error
    assert out.scores == {}


def test_grain_sees_noise_in_the_margins_only():
    clean = np.full((32, 128, 1), 200, np.uint8)
    middle = clean.copy()
    middle[10:20] = 0
    noisy = clean.copy()
    noisy[::2] = 180
    assert grain(clean) == grain(middle) == 0.0
    assert grain(noisy) > 9


def test_names_are_checked_with_the_nearest():
    check_names(NAMES)
    with pytest.raises(ConfigError, match="did you mean 'ocr_ctc'"):
        check_names(["ocr_cct"])


def test_an_unknown_character_is_named():
    with pytest.raises(InputError, match="knows no"):
        Recogniser().classes_of("\ue000")
