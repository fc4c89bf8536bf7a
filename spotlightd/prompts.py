"""Prompt files: one prompt a line, the text to draw between the first pair of double quotes.

This is flow_grpo's OCR format, so files that users already have load as they are.
"""

import hashlib
from pathlib import Path

from spotlightd.errors import InputError
from spotlightd.planner.plan import PromptSpec

EMBEDDED = ("train", "held_out")
"""Names of the lists that ship with the project."""
MAX_PROMPT_CHARACTERS = 4096


def load_prompts(name: str) -> list[PromptSpec]:
    """Return the prompts of an embedded list or of a file, in file order.

    Blank lines are skipped. The prompt id is a digest of the text, so it survives reordering; a
    repeated line is one prompt.

    Raises:
        InputError: no such file, not UTF-8, empty, or a line without quoted text; with the
            line's number.
    """
    path = (
        Path(__file__).parent / "prompts_data" / f"{name}.txt" if name in EMBEDDED else Path(name)
    )
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(
            f"cannot read the prompts {path}: {error.strerror}; expected a text file with one "
            f"prompt a line, or one of: {', '.join(EMBEDDED)}"
        ) from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start})") from None
    prompts: dict[str, PromptSpec] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            prompt = _parse(line.strip(), f"{path}, line {number}")
            prompts.setdefault(prompt.prompt_id, prompt)
    if not prompts:
        raise InputError(f"{path} holds no prompt: expected one a line")
    return list(prompts.values())


def _parse(line: str, where: str) -> PromptSpec:
    if len(line) > MAX_PROMPT_CHARACTERS:
        raise InputError(f"{where}: prompt of {len(line)} characters, {MAX_PROMPT_CHARACTERS} fit")
    _, opening, rest = line.partition('"')
    target, closing, _ = rest.partition('"')
    if not opening or not closing or not target.strip():
        raise InputError(
            f"{where}: no text between straight double quotes, which the OCR reward compares "
            f'with; expected a line such as: a sign that reads "OPEN"'
        )
    digest = hashlib.blake2b(line.encode(), digest_size=5).hexdigest()
    return PromptSpec(f"p{digest}", line, target)
