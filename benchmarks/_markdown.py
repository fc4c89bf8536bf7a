"""Markdown tables, line by line."""

from collections.abc import Iterator

Lines = Iterator[str]


def row(*words: object) -> str:
    return "| " + " | ".join(str(word) for word in words) + " |"


def table(*names: str) -> Lines:
    """Yield the head of a table."""
    yield row(*names)
    yield "|" + "---|" * len(names)
