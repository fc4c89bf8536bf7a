"""Prompt files, embedded and the users' own."""

from pathlib import Path

import pytest

from spotlightd.errors import ConfigError, InputError
from spotlightd.prompts import load_prompts

SHARED = Path(__file__).parents[2] / "shared/data"
REAL = SHARED / "ocr_test_500.txt"
GENEVAL = SHARED / "geneval_test_600.jsonl"
RECORD = '{"tag": "counting", "include": [{"class": "cup", "count": 2}], "prompt": "two cups"}'
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
    lines = ['sign "A"', 'sign "B"', 'sign "C"']
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n\n")
    (tmp_path / "b.txt").write_text("\n".join(reversed(lines)))
    first, second = (load_prompts(str(tmp_path / f"{n}.txt")) for n in "ab")
    assert {p.prompt_id for p in first} == {p.prompt_id for p in second}
    assert len(first) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'sign "A"\nno quotes here\n', "line 2: no text between straight double quotes"),
        (b'sign "A\n', "line 1: no text between"),
        (b'sign ""\n', "line 1: no text between"),
        (b"\n\n", "holds no prompt"),
        (b'sign "A"\n\nsign "B"\n', "line 2: the line is blank"),
        (b'sign "A"\nsign "B"\nsign "A"\n', "line 3: the prompt stands in .*line 1 already"),
        (b'sign "A"\n\xff\xfe', r"line 2: not UTF-8 text \(byte 9\)"),
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


@pytest.mark.skipif(not GENEVAL.exists(), reason="flow_grpo's record file is not at hand")
def test_flow_grpos_records_load_each_once():
    prompts = load_prompts(str(GENEVAL), {"record"})
    assert len(prompts) == len({p.text for p in prompts}) == 406
    assert prompts[0].target.startswith('{"tag":"position","include":[{"class":"baseball bat"')
    plain = load_prompts(str(GENEVAL), {"prompt"})
    assert [p.text for p in plain] == [p.text for p in prompts] and plain[0].target == ""


def test_a_byte_order_mark_is_no_part_of_the_first_prompt(tmp_path):
    (tmp_path / "p.txt").write_bytes(b'\xef\xbb\xbfsign "A"\n')
    assert load_prompts(str(tmp_path / "p.txt"))[0].text == 'sign "A"'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not a JSON object"),
        ("[1]", "line 2: not a JSON object"),
        ('{"text": "x"}', r"line 2: no text under 'prompt' \(fields: text\)"),
        ('{"prompt": "x"}', "line 2: not a GenEval record.*include"),
        ('{"prompt": "x", "include": []}', "line 2: not a GenEval record"),
        ('{"prompt": "x", "include": [{"class": "cup", "count": 0}]}', "line 2: not a GenEval"),
        (
            '{"prompt": "x", "include": [{"class": "a", "count": 1, "position": ["near", 0]}]}',
            "line 2: not a GenEval record: position",
        ),
        (RECORD.replace('"count": 2', '"count": 3'), "line 2: the prompt stands in .*line 1"),
    ],
)
def test_a_bad_record_is_refused_with_its_line(tmp_path, line, message):
    (tmp_path / "p.jsonl").write_text(f"{RECORD}\n{line}\n{RECORD}\n")
    with pytest.raises(InputError, match=message):
        load_prompts(str(tmp_path / "p.jsonl"), {"record"})


def test_a_text_file_holds_no_records(tmp_path):
    (tmp_path / "p.txt").write_text("two cups\n")
    with pytest.raises(InputError, match=r"line 1: .*needs a \.jsonl file of GenEval records"):
        load_prompts(str(tmp_path / "p.txt"), {"record"})
    assert load_prompts(str(tmp_path / "p.txt"), {"prompt"})[0].target == ""


def test_rewards_that_want_different_targets_are_refused():
    with pytest.raises(ConfigError, match="compare with different things"):
        load_prompts("train", {"text", "record"})


def test_a_folder_is_read_by_split(tmp_path):
    (tmp_path / "train.txt").write_text('sign "A"\n')
    (tmp_path / "test_metadata.jsonl").write_text('{"prompt": "sign \\"B\\""}\n')
    folder = str(tmp_path)
    assert [p.target for p in load_prompts(folder)] == ["A"]
    assert [p.target for p in load_prompts(folder, split="test")] == ["B"]
    (tmp_path / "train.txt").unlink()
    with pytest.raises(InputError, match=r"holds no train\.txt"):
        load_prompts(folder)


@pytest.mark.parametrize("layout", ["train/data-00000-of-00001.arrow", "data/train-0.parquet"])
def test_datasets_of_the_hub_are_read(tmp_path, layout):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import ipc, parquet

    chat = [{"role": "user", "content": "a sign that says go"}]
    table = pyarrow.Table.from_pylist(
        [{"prompt": chat, "reward_model": {"ground_truth": "GO"}, "data_source": "ocr"}] * 2
    )
    path = tmp_path / layout
    path.parent.mkdir()
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    else:
        with path.open("wb") as file, ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
    (prompt,) = load_prompts(str(tmp_path))
    assert (prompt.text, prompt.target) == ("a sign that says go", "GO")
    path.write_bytes(b"PAR1 nothing")
    with pytest.raises(InputError, match="cannot be read"):
        load_prompts(str(tmp_path))
