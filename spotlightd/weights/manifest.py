"""Manifests: an immutable list of files with a BLAKE3 digest per chunk."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from blake3 import blake3

from spotlightd.errors import InputError
from spotlightd.wire.messages import Manifest, WeightFile


class ChunkPlace(NamedTuple):
    """Where a chunk lies in its file."""

    digest: str
    path: str
    offset: int
    size: int


def build_manifest(
    kind: Literal["base", "adapter"], version: int, root: Path, chunk_bytes: int
) -> Manifest:
    """Describe the files below a folder, sorted by path.

    Raises InputError for an empty folder or a link that leads out of it.
    """
    paths = sorted(path for path in root.rglob("*") if path.is_file() and _published(path, root))
    if not paths:
        raise InputError(f"{root} holds no files to publish")
    for path in paths:
        if not path.resolve().is_relative_to(root.resolve()):
            raise InputError(f"{path} is a link that leads out of {root}: it is not published")
    return Manifest(
        kind, version, chunk_bytes, tuple(_describe(p, root, chunk_bytes) for p in paths)
    )


def _published(path: Path, root: Path) -> bool:
    """Hidden files are editors' and temporary ones, not weights."""
    return not any(part.startswith((".", "_")) for part in path.relative_to(root).parts)


def _describe(path: Path, root: Path, chunk_bytes: int) -> WeightFile:
    chunks = []
    with path.open("rb") as file:
        while data := file.read(chunk_bytes):
            chunks.append(blake3(data).hexdigest())
    return WeightFile(path.relative_to(root).as_posix(), path.stat().st_size, tuple(chunks))


def chunk_places(manifest: Manifest) -> Iterator[ChunkPlace]:
    """Go through all chunks, file by file.

    Raises InputError where a file's size and its number of chunks do not fit.
    """
    size = manifest.chunk_bytes
    for file in manifest.files:
        if len(file.chunks) != -(-file.size // size):
            raise InputError(f"manifest is inconsistent: {file.path} of {file.size} bytes")
        for index, digest in enumerate(file.chunks):
            offset = index * size
            yield ChunkPlace(digest, file.path, offset, min(size, file.size - offset))


def manifest_digest(manifest: Manifest) -> str:
    """Return the version's root hash: BLAKE3 of the canonical encoding."""
    return blake3(msgspec.msgpack.encode(manifest)).hexdigest()
