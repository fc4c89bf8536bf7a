"""What a safetensors file holds, read without torch, and the digest of tensors by value.

The digest says what is *in a model* after binding, where file digests only say what was read.
Whoever has tensors in memory computes it from those (`dit/versions.py`), the publisher from the
file; both feed `tensors_digest`.

The layout is safetensors' own: a little-endian u64, so many bytes of JSON, then the data.
"""

import json
import mmap
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from spotlightd.errors import InputError

MAX_HEADER_BYTES = 100 * 2**20
Buffer = bytes | bytearray | memoryview


class TensorPlace(NamedTuple):
    """A tensor in its file; `start` and `end` count from the file's first byte."""

    dtype: str
    """As safetensors writes it, such as `BF16`."""
    shape: tuple[int, ...]
    start: int
    end: int


class TensorValue(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    data: Buffer


def read_header(path: Path) -> dict[str, TensorPlace]:
    """Return the tensors of a safetensors file by name.

    Raises InputError where it is none, or where a tensor lies outside it.
    """
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > MAX_HEADER_BYTES:
                raise ValueError(f"a header of {length} bytes")
            table = json.loads(file.read(length))
            size = path.stat().st_size
        places = {
            name: TensorPlace(
                str(row["dtype"]),
                tuple(int(n) for n in row["shape"]),
                8 + length + int(row["data_offsets"][0]),
                8 + length + int(row["data_offsets"][1]),
            )
            for name, row in table.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, KeyError, TypeError, IndexError, struct.error) as error:
        raise InputError(f"{path} is not a safetensors file: {error!r}") from None
    for name, place in places.items():
        if not 8 + length <= place.start <= place.end <= size:
            raise InputError(f"{path}: tensor {name} lies outside the file, which has been cut off")
    return places


def tensors_digest(tensors: Mapping[str, TensorValue]) -> str:
    """Return the BLAKE3 digest over names, dtypes, shapes and values, sorted by name."""
    hasher = blake3()
    for name in sorted(tensors):
        dtype, shape, data = tensors[name]
        # JSON closes each part, so that no two tables run together to the same bytes.
        hasher.update(json.dumps([name, dtype, list(shape)]).encode())
        hasher.update(data)
    return hasher.hexdigest()


def files_digest(paths: Iterable[Path]) -> str | None:
    """Return the digest of all tensors in safetensors files; None where there are no files.

    Raises InputError where a file is damaged or two hold a tensor of the same name.
    """
    values: dict[str, TensorValue] = {}
    for path in paths:
        places = read_header(path)
        twice = values.keys() & places.keys()
        if twice:
            raise InputError(f"{path} holds {min(twice)} for a second time")
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        for name, place in places.items():
            values[name] = TensorValue(place.dtype, place.shape, data[place.start : place.end])
    return tensors_digest(values) if values else None
