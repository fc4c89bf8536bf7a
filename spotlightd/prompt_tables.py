"""Rows of a dataset's folder as Hugging Face's `datasets` writes it: parquet, or arrow streams.

Read with pyarrow, an optional part of the installation; `datasets` itself is not needed.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from spotlightd.errors import InputError


def find_tables(folder: Path, split: str) -> list[Path]:
    """Return the split's files in order; none where the folder holds none.

    Known layouts: `<split>/data-*.arrow` (`save_to_disk` of several splits), `data-*.arrow` (of
    one), `data/<split>-*.parquet` and `<split>*.parquet` (as on the hub).
    """
    for pattern in (
        f"{split}/data-*.arrow",
        "data-*.arrow",
        f"data/{split}-*.parquet",
        f"{split}*.parquet",
    ):
        found = sorted(folder.glob(pattern))
        if found:
            return found
    return []


def read_tables(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Yield each row as a dict. Raises InputError without pyarrow, or for a damaged file."""
    try:
        from pyarrow import ArrowException, ipc, parquet
    except ImportError:
        raise InputError(
            f"{paths[0]} needs pyarrow to be read: pip install 'spotlight-rl[datasets]'"
        ) from None
    for path in paths:
        try:
            if path.suffix == ".parquet":
                table = parquet.read_table(path)
            else:
                with path.open("rb") as file:
                    table = ipc.open_stream(file).read_all()
            rows = table.to_pylist()
        except (OSError, ValueError, ArrowException) as error:
            raise InputError(f"{path} cannot be read: {error}") from None
        yield from rows
