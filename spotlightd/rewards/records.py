"""GenEval's metadata (arXiv 2310.11513): what a prompt asks for, in `include` and `exclude`.

A request carries its record as JSON where other prompts carry the text to draw.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from spotlightd.errors import InputError

PLACES = ("left of", "right of", "above", "below")


class Clause(Struct, frozen=True, rename={"kind": "class"}):
    kind: str
    count: Annotated[int, Meta(ge=1)]
    color: str | None = None
    position: tuple[str, int] | None = None
    """Place relative to the objects of another `include` clause, by its index."""


class Record(Struct, frozen=True):
    include: Annotated[tuple[Clause, ...], Meta(min_length=1)]
    exclude: tuple[Clause, ...] = ()
    tag: str = ""
    prompt: str = ""


def parse_record(text: str | bytes) -> Record:
    """Read one GenEval record. Raises InputError naming what is wrong."""
    try:
        record = msgspec.json.decode(text, type=Record)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"not a GenEval record: {error}") from None
    for clause in record.include:
        if clause.position is None:
            continue
        place, other = clause.position
        if place not in PLACES or not 0 <= other < len(record.include):
            raise InputError(
                f"not a GenEval record: position {list(clause.position)}, expected one of "
                f"{', '.join(PLACES)} and the index of an include clause"
            )
    return record


def record_text(where: str, fields: dict[str, Any]) -> str:
    """Return the record of a prompt file's line as JSON, checked, without the prompt itself.

    Raises InputError naming the line.
    """
    kept = {key: fields[key] for key in ("tag", "include", "exclude") if key in fields}
    text = msgspec.json.encode(kept).decode()
    try:
        parse_record(text)
    except InputError as error:
        raise InputError(
            f"{where}: {error}; the composition reward needs a .jsonl file of GenEval records"
        ) from None
    return text
