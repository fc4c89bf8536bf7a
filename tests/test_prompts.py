"""Prompt files, embedded and the users' own."""

from pathlib import Path

import pytest

from spotlightd.errors import InputError
from spotlightd.prompts import load_prompts

REAL = Path(__file__).parents[2] / "shared/data/ocr_test_500.txt"
WORDS = Path(__file__).parents[1] / "spotlightd/dit/models/glyph_words.txt"


def test_embedded_lists_are_disjoint_and_held_out_words_are_new_to_the_model():
    train = {p.target for p in load_prompts("train")}
    held_out = {p.target for p in load_prompts("held_out")}
    assert len(held_out) >= 32 and len(train) >= 60
    assert not train & held_out
    assert not held_out & set(WORDS.read_text().split())


@pytest.mark.skipif(not REAL.exists(), reason="flow_grpo's prompt file is not at hand")
def test_flow_grpos_own_file_loads():
    prompts = load_prompts(str(REAL))
    assert len(prompts) == len({p.prompt_id for p in prompts}) == 500
    assert prompts[0].target == "Spring Collection 2024"


def test_ids_do_not_depend_on_the_order(tmp_path):
    lines = ['sign "A"', "", 'sign "B"', 'sign "A"']
    (tmp_path / "a.txt").write_text("\n".join(lines))
    (tmp_path / "b.txt").write_text("\n".join(reversed(lines)))
    first, second = (load_prompts(str(tmp_path / f"{n}.txt")) for n in "ab")
    assert {p.prompt_id for p in first} == {p.prompt_id for p in second}
    assert len(first) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'sign "A"\nno quotes here\n', "line 2: no text between straight double quotes"),
        (b'sign "A\n', "line 1: no text between"),
        (b'sign ""\n', "line 1: no text between"),
        (b"\n\n", "holds no prompt"),
        (b"\xff\xfe", "not UTF-8 text"),
        (b'"' + b"A" * 5000 + b'"', "line 1: prompt of 5002 characters"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path, content, message):
    path = tmp_path / "prompts.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        load_prompts(str(path))
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named():
    with pytest.raises(InputError, match="cannot read the prompts /no/such/file"):
        load_prompts("/no/such/file")
