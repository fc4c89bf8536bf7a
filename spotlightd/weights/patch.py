"""Sparse patches: a version as what changed in the one before, lossless, for full fine-tuning.

With a small learning rate most bf16 values do not change at all in one update (PULSE,
arXiv 2602.03839, counts about 99 %), but the few that do lie in every chunk. A patch lists the
changed elements of each file: the gaps between their positions, and their new bits XOR the old.
Both compress well: gaps are small, and a small change leaves the high byte as it was.

Layout of a patch file: `SPP1`, then for each file a MessagePack header (length as u32, then
`PatchedFile`) and its sections, each zlib-compressed.
"""

import mmap
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from spotlightd.errors import InputError
from spotlightd.wire.weights import Manifest

MAGIC = b"SPP1"
BLOCK = 16 * 2**20
"""Bytes of a file that are compared, and patched, at a time."""
WORD = 2
"""Bytes of an element: bf16 and fp16 are what is fine-tuned; fp32 counts as two."""
WORTH = 0.5
"""A patch is published where it has at most this share of the bytes that it replaces."""
MOST_CHANGED = 1 / 8
"""With a larger share of changed words in any block no patch is made: it would not be worth the
time. An adapter in fp32 changes nearly everywhere, and that shows in the first block."""


class Section(msgspec.Struct, frozen=True):
    """A block with changes."""

    block: int
    changed: int
    gaps: int
    """Compressed bytes of the gaps, then of the differences."""
    differences: int


class PatchedFile(msgspec.Struct, frozen=True):
    path: str
    size: int
    tail: bytes
    """What is left after the last whole word."""
    sections: tuple[Section, ...]


def make(old: Path, new: Path, paths: list[str], target: Path) -> int | None:
    """Write the patch from one version's folder to another's; return its size.

    Returns None, and writes nothing, where a file is new or has another size, because a patch
    knows changed values only, and where too much has changed.
    """
    parts: list[bytes] = [MAGIC]
    for path in paths:
        if not (old / path).is_file() or (old / path).stat().st_size != (new / path).stat().st_size:
            return None
        sections: list[Section] = []
        body: list[bytes] = []
        before, after = _words(old / path), _words(new / path)
        for block in range(-(-len(after) // (BLOCK // WORD))):
            part = slice(block * BLOCK // WORD, (block + 1) * BLOCK // WORD)
            difference = before[part] ^ after[part]
            (places,) = np.nonzero(difference)
            if not len(places):
                continue
            if len(places) > max(MOST_CHANGED * len(difference), 64):
                return None
            gaps = zlib.compress(np.diff(places, prepend=0).astype("<u4").tobytes(), 1)
            values = difference[places].astype("<u2")
            # High bytes apart from low ones: the first hardly ever change.
            planes = (values >> 8).astype("u1").tobytes() + (values & 255).astype("u1").tobytes()
            packed = zlib.compress(planes, 1)
            sections.append(Section(block, len(places), len(gaps), len(packed)))
            body += [gaps, packed]
        size = (new / path).stat().st_size
        tail = _tail(new / path, size)
        header = msgspec.msgpack.encode(PatchedFile(path, size, tail, tuple(sections)))
        parts += [struct.pack("<I", len(header)), header, *body]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(b"".join(parts))
    return target.stat().st_size


def worth(patch_bytes: int, manifest: Manifest, parent: Manifest) -> bool:
    """Whether a patch saves enough over fetching the chunks that changed."""
    known = {digest for file in parent.files for digest in file.chunks}
    changed = sum(
        min(manifest.chunk_bytes, file.size - index * manifest.chunk_bytes)
        for file in manifest.files
        for index, digest in enumerate(file.chunks)
        if digest not in known
    )
    return patch_bytes <= WORTH * changed


def apply(patch: Path, old: Path, new: Path) -> None:
    """Make the files of `new` from those of `old`. The caller checks them against a manifest.

    Raises InputError where the patch is damaged or does not fit `old`.
    """
    try:
        data = patch.read_bytes()
        if data[: len(MAGIC)] != MAGIC:
            raise ValueError("it does not begin as a patch does")
        for header, sections in _read(memoryview(data)[len(MAGIC) :]):
            _apply_file(header, sections, old, new)
    except (OSError, ValueError, struct.error, zlib.error, msgspec.DecodeError) as error:
        raise InputError(f"the patch {patch} does not fit {old}: {error}") from None


def _apply_file(
    header: PatchedFile,
    sections: list[tuple[Section, memoryview, memoryview]],
    old: Path,
    new: Path,
) -> None:
    source, target = old / header.path, new / header.path
    if not target.resolve().is_relative_to(new.resolve()):
        raise ValueError(f"it names a file outside its folder: {header.path}")
    if source.stat().st_size != header.size:
        raise ValueError(f"{header.path} has another size")
    partial = target.with_name(f".partial-{target.name}")
    partial.parent.mkdir(parents=True, exist_ok=True)
    _copy(source, partial)
    with partial.open("r+b") as file:
        for section, gaps, packed in sections:
            places = np.cumsum(np.frombuffer(_inflate(gaps, 4 * section.changed), "<u4"))
            planes = np.frombuffer(_inflate(packed, 2 * section.changed), "u1")
            values = planes[: section.changed].astype("<u2") << 8 | planes[section.changed :]
            file.seek(section.block * BLOCK)
            words = np.frombuffer(bytearray(file.read(BLOCK // WORD * WORD)), "u1")
            words = words[: len(words) // WORD * WORD].view("<u2")
            if len(places) and int(places[-1]) >= len(words):
                raise ValueError(f"{header.path} is changed beyond its end")
            words[places] ^= values.astype("<u2")
            file.seek(section.block * BLOCK)
            file.write(words.tobytes())
        file.seek(header.size - len(header.tail))
        file.write(header.tail)
    os.replace(partial, target)


def _read(
    data: memoryview,
) -> Iterator[tuple[PatchedFile, list[tuple[Section, memoryview, memoryview]]]]:
    while data.nbytes:
        (length,) = struct.unpack("<I", data[:4])
        header = msgspec.msgpack.decode(data[4 : 4 + length], type=PatchedFile)
        data = data[4 + length :]
        sections = []
        for section in header.sections:
            end = section.gaps + section.differences
            if min(section.gaps, section.differences, section.changed, section.block) < 0:
                raise ValueError("a section has a negative size")
            if end > data.nbytes or section.changed > BLOCK // WORD:
                raise ValueError("it is cut off")
            sections.append((section, data[: section.gaps], data[section.gaps : end]))
            data = data[end:]
        yield header, sections


def _inflate(data: memoryview, expected: int) -> bytes:
    """Decompress to exactly so many bytes: a patch cannot ask for more memory than that."""
    inflater = zlib.decompressobj()
    found = inflater.decompress(data, expected) if expected else b""
    # The checksum stands at the end, which may not have been read yet.
    more = inflater.decompress(inflater.unconsumed_tail, 1)
    if len(found) != expected or more or not inflater.eof:
        raise ValueError("a section has another length than it says")
    return found


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as reads, target.open("wb") as writes:
        left = source.stat().st_size
        while left:
            copied = os.copy_file_range(reads.fileno(), writes.fileno(), left)
            if not copied:
                raise ValueError(f"{source} has been cut off")
            left -= copied


def _words(path: Path) -> "np.ndarray[tuple[int], np.dtype[np.uint16]]":
    size = path.stat().st_size // WORD
    if not size:
        return np.zeros(0, "<u2")
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    return np.frombuffer(data, "<u2", count=size)


def _tail(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(size - size % WORD)
        return file.read()
