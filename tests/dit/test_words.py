"""Held-out words are new to pretraining and to training alike; every word can be drawn."""

import random
import sys
from pathlib import Path

import pytest

from spotlightd.dit.models.glyph_render import CELLS

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import pretrain  # noqa: E402

DATA = ROOT / "spotlightd" / "prompts_data"


def quoted(name):
    return [line.split('"')[1] for line in (DATA / name).read_text().splitlines() if line]


def test_held_out_words_are_in_no_other_list():
    held_out = set(quoted("held_out.txt"))
    assert len(held_out) >= 32
    assert not held_out & set(quoted("train.txt"))
    assert not held_out & set(pretrain.WORDS.read_text().split())


@pytest.mark.parametrize("name", ["train.txt", "held_out.txt"])
def test_every_prompt_can_be_drawn_and_occurs_once(name):
    words = quoted(name)
    assert len(words) == len(set(words))
    assert all(1 <= len(w) <= CELLS and set(w) <= set(pretrain.CHARACTERS) for w in words)


def test_pretraining_never_draws_a_held_out_word(monkeypatch):
    # Random strings of one letter would hit this held-out list half of the time.
    monkeypatch.setattr(pretrain, "CHARACTERS", "AB")
    captions = pretrain.Captions(random.Random(0))
    captions._held_out = {"AA", "BB", "ABBA"}
    drawn = {captions.draw()[0] for _ in range(3000)}
    assert {"AB", "BA"} <= drawn
    assert not drawn & captions._held_out


def test_captions_are_wrong_about_as_often_as_the_recipe_says():
    captions = pretrain.Captions(random.Random(0))
    pairs = [captions.draw() for _ in range(1000)]
    letters = [
        (a, b) for word, text in pairs for a, b in zip(word, text.split('"')[1], strict=True)
    ]
    wrong = sum(a != b for a, b in letters) / len(letters)
    expected = pretrain.CAPTION_NOISE * (1 - 1 / len(pretrain.CHARACTERS))
    assert wrong == pytest.approx(expected, abs=0.02)
