"""Multipart messages over a stream between a process and its child.

Layout: little-endian `u32` number of parts, then a `u64` size for each, then the parts. Bounds
are checked before anything is allocated. The stream is one end of a socket pair: it closes when
the other process dies, so a child never outlives its parent unnoticed.
"""

import struct
from collections.abc import Sequence

from spotlightd.wire.codec import Buffer, TypedCodec, WireError
from spotlightd.wire.worker import FromScorer, FromStore, FromWorker, ToScorer, ToStore, ToWorker

MAX_PARTS = 64
MAX_PART_BYTES = 2**31

TO_WORKER = TypedCodec(ToWorker)
FROM_WORKER = TypedCodec(FromWorker)
TO_SCORER = TypedCodec(ToScorer)
FROM_SCORER = TypedCodec(FromScorer)
TO_STORE = TypedCodec(ToStore)
FROM_STORE = TypedCodec(FromStore)

COUNT = struct.Struct("<I")


def pack_sizes(parts: Sequence[Buffer]) -> bytes:
    """Return the prefix that goes before `parts`."""
    sizes = [memoryview(part).nbytes for part in parts]
    return struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)


def unpack_count(prefix: bytes) -> int:
    """Return the number of parts that follow. Raises WireError out of bounds."""
    (count,) = COUNT.unpack(prefix)
    if not 1 <= count <= MAX_PARTS:
        raise WireError(f"a child announced {count} parts: between 1 and {MAX_PARTS} are accepted")
    return int(count)


def unpack_sizes(data: bytes, count: int) -> tuple[int, ...]:
    """Return each part's size in bytes. Raises WireError out of bounds."""
    sizes = struct.unpack(f"<{count}Q", data)
    if any(size > MAX_PART_BYTES for size in sizes):
        raise WireError(f"a child announced parts of {sizes} bytes: at most {MAX_PART_BYTES} each")
    return sizes
