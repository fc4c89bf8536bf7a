"""Prompt files as users have them: flow_grpo's text and GenEval files, and Hugging Face datasets.

    NAME.txt     one prompt a line; OCR rewards compare with the text in the first double quotes
    NAME.jsonl   one JSON object a line with `prompt`; GenEval's records have `include` as well
    FOLDER       a split of a dataset: FOLDER/train.txt, FOLDER/train_metadata.jsonl (flow_grpo), or
                 what `datasets` saves (parquet, arrow)

What is wrong in a file is said with its line; nothing is skipped in silence.
"""

import hashlib
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from spotlightd.errors import ConfigError, InputError
from spotlightd.planner.plan import PromptSpec
from spotlightd.prompt_tables import find_tables, read_tables
from spotlightd.rewards import Needs
from spotlightd.rewards.records import record_text

EMBEDDED = ("train", "held_out")
"""Names of the lists that ship with the project."""
MAX_PROMPT_CHARACTERS = 4096
MAX_TARGET_CHARACTERS = 1024
TEXT: tuple[Needs, ...] = ("text",)

Split = Literal["train", "test"]


class Row(NamedTuple):
    """A prompt as it stands in a file."""

    where: str
    """File and line, for errors."""
    text: str
    fields: dict[str, Any]
    """What the file says beside the prompt."""


def load_prompts(
    name: str, needs: Collection[Needs] = TEXT, split: Split = "train"
) -> list[PromptSpec]:
    """Return the prompts of an embedded list, a file or a dataset's folder, in their order.

    The prompt id is a digest of the prompt and of what it is compared with, so it survives
    reordering. GenEval's files repeat a record for each image; equal records are one prompt.

    Args:
        needs: what the rewards compare with (`rewards.needs_of`).
        split: which part of a folder.

    Raises:
        InputError: no such file, not UTF-8, empty, a blank, repeated or over-long prompt, or one
            without what the rewards need; with the line's number.
        ConfigError: rewards that no prompt can serve together.
    """
    if {"text", "record"} <= set(needs):
        raise ConfigError(
            "rewards that read text and rewards that grade compositions compare with different "
            "things, and a prompt has one of them: train them in two runs"
        )
    path = _find(name, split)
    rows = _table_rows(path, split) if os.path.isdir(path) else _file_rows(path)
    repeats = path.suffix != ".txt"
    seen: dict[str, Row] = {}
    prompts: dict[str, PromptSpec] = {}
    for row in rows:
        prompt = _spec(row, needs)
        first = seen.setdefault(prompt.text, row)
        if first is not row and not (repeats and prompt.prompt_id in prompts):
            raise InputError(f"{row.where}: the prompt stands in {first.where} already; delete one")
        prompts[prompt.prompt_id] = prompt
    if not prompts:
        raise InputError(f"{path} holds no prompt: expected one a line")
    return list(prompts.values())


def _find(name: str, split: Split) -> Path:
    """Return the file to read, or the folder where its tables lie."""
    if name in EMBEDDED:
        return Path(__file__).parent / "prompts_data" / f"{name}.txt"
    path = Path(name)
    # os.path: what can be no file's name, such as a very long one, is no folder either.
    if os.path.isdir(path):
        for candidate in (f"{split}.txt", f"{split}_metadata.jsonl", f"{split}.jsonl"):
            if (path / candidate).is_file():
                return path / candidate
    return path


def _file_rows(path: Path) -> Iterable[Row]:
    lines = _read(path).splitlines()
    while lines and not lines[-1].strip():
        lines.pop()
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        if not line.strip():
            raise InputError(f"{where}: the line is blank; delete it")
        yield _json_row(where, line) if path.suffix == ".jsonl" else Row(where, line.strip(), {})


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(
            f"cannot read the prompts {path}: {why}; expected a text or .jsonl file with one "
            f"prompt a line, a dataset's folder, or one of: {', '.join(EMBEDDED)}"
        ) from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}, line {line}: not UTF-8 text (byte {error.start}); save the file as UTF-8"
        ) from None


def _json_row(where: str, line: str) -> Row:
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise InputError(f"{where}: not a JSON object: {error}") from None
    return Row(where, _prompt_of(where, fields), fields)


def _table_rows(path: Path, split: Split) -> Iterable[Row]:
    tables = find_tables(path, split)
    if not tables:
        raise InputError(
            f"{path} holds no {split}.txt, no {split}_metadata.jsonl and no parquet or arrow files "
            f"of a split '{split}'"
        )
    for number, fields in enumerate(read_tables(tables), start=1):
        where = f"{path}, {split} row {number}"
        yield Row(where, _prompt_of(where, fields), fields)


def _prompt_of(where: str, fields: dict[str, Any]) -> str:
    """Return the prompt: a text, or the last message of a chat."""
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[-1], dict):
        prompt = prompt[-1].get("content")
    if not isinstance(prompt, str) or not prompt.strip():
        raise InputError(f"{where}: no text under 'prompt' (fields: {', '.join(fields) or 'none'})")
    return prompt.strip()


def _spec(row: Row, needs: Collection[Needs]) -> PromptSpec:
    if len(row.text) > MAX_PROMPT_CHARACTERS:
        raise InputError(
            f"{row.where}: prompt of {len(row.text)} characters, {MAX_PROMPT_CHARACTERS} fit"
        )
    target = _target(row, needs)
    if len(target) > MAX_TARGET_CHARACTERS:
        raise InputError(
            f"{row.where}: what the reward compares with has {len(target)} characters, "
            f"{MAX_TARGET_CHARACTERS} fit"
        )
    named = row.text if "record" not in needs else f"{row.text}\n{target}"
    digest = hashlib.blake2b(named.encode(), digest_size=5).hexdigest()
    return PromptSpec(f"p{digest}", row.text, target)


def _target(row: Row, needs: Collection[Needs]) -> str:
    if "record" in needs:
        return record_text(row.where, row.fields)
    judged = row.fields.get("reward_model")
    given = judged.get("ground_truth") if isinstance(judged, dict) else row.fields.get("target")
    if isinstance(given, str) and given.strip():
        return given.strip()
    _, opening, rest = row.text.partition('"')
    target, closing, _ = rest.partition('"')
    if opening and closing and target.strip():
        return target
    if "text" in needs:
        raise InputError(
            f"{row.where}: no text between straight double quotes, which the OCR reward compares "
            f'with; expected a line such as: a sign that reads "OPEN"'
        )
    return ""
