"""Manifests: an immutable list of files with a BLAKE3 digest per chunk."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
from blake3 import blake3

from spotlightd.errors import InputError
from spotlightd.weights.remembered import RememberedDigests
from spotlightd.weights.tensors import files_digest
from spotlightd.wire.weights import (
    MAX_MANIFEST_BYTES,
    AnnouncedVersion,
    Kind,
    Manifest,
    Patch,
    WeightFile,
)

MANY_CHUNKS = 1024
LARGEST_CHUNK = 64 * 2**20
LONG_MANIFEST = 2048
"""Bytes above which a manifest is announced by its digest: ten thousand times 14 kB over CURVE take
half as long as the adapter that they describe."""


class ChunkPlace(NamedTuple):
    """Where a chunk lies in its file."""

    digest: str
    path: str
    offset: int
    size: int


def chunk_size(total: int, least: int) -> int:
    """Return the chunk size for files of `total` bytes: `least`, doubled while there would be
    more than `MANY_CHUNKS`, up to 64 MiB.

    A manifest is sent to every agent; with 4 MiB chunks that of a 41 GB model would have 650 kB.
    """
    size = least
    while total > size * MANY_CHUNKS and size * 2 <= LARGEST_CHUNK:
        size *= 2
    return size


def build_manifest(
    kind: Kind,
    version: int,
    root: Path,
    chunk_bytes: int,
    parent: int | None = None,
    remembered: RememberedDigests | None = None,
) -> Manifest:
    """Describe the files below a folder, sorted by path.

    Args:
        chunk_bytes: the least size of a chunk (see `chunk_size`).
        parent: the version before this one.
        remembered: digests of earlier calls; new ones are added to it.

    Raises InputError for an empty folder, a link that leads out of it, or a damaged adapter.
    """
    paths = sorted(path for path in root.rglob("*") if path.is_file() and _published(path, root))
    if not paths:
        raise InputError(f"{root} holds no files to publish")
    for path in paths:
        if not path.resolve().is_relative_to(root.resolve()):
            raise InputError(f"{path} is a link that leads out of {root}: it is not published")
    size = chunk_size(sum(path.stat().st_size for path in paths), chunk_bytes)
    files = tuple(
        WeightFile(
            path.relative_to(root).as_posix(),
            path.stat().st_size,
            chunk_digests(path, size, remembered),
        )
        for path in paths
    )
    tensors = None
    if kind == "adapter":
        tensors = files_digest(path for path in paths if path.suffix == ".safetensors")
    return Manifest(kind, version, size, files, parent, tensors)


def chunk_digests(
    path: Path, chunk_bytes: int, remembered: RememberedDigests | None = None
) -> tuple[str, ...]:
    """Return the digest of each chunk of a file, from memory where it has not changed."""
    known = remembered.find(path, chunk_bytes) if remembered else None
    if known is not None:
        return known
    chunks, stat = [], path.stat()
    with path.open("rb") as file:
        while data := file.read(chunk_bytes):
            chunks.append(blake3(data, max_threads=blake3.AUTO).hexdigest())
    if remembered is not None:
        remembered.note(path, stat, chunk_bytes, tuple(chunks))
    return tuple(chunks)


def _published(path: Path, root: Path) -> bool:
    """Hidden files are editors' and temporary ones, not weights."""
    return not any(part.startswith((".", "_")) for part in path.relative_to(root).parts)


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


def chunk_order(manifest: Manifest) -> list[str]:
    """Return the distinct chunks: their places in this list are what bit masks count."""
    return list(dict.fromkeys(place.digest for place in chunk_places(manifest)))


def total_bytes(manifest: Manifest) -> int:
    return sum(file.size for file in manifest.files)


def manifest_digest(manifest: Manifest) -> str:
    """Return the version's root hash: BLAKE3 over what its files are.

    How they may be put together from another version's is left out.
    """
    return blake3(msgspec.msgpack.encode(msgspec.structs.replace(manifest, patch=None))).hexdigest()


def encode_manifest(manifest: Manifest) -> bytes:
    return msgspec.msgpack.encode(manifest)


def decode_manifest(data: bytes) -> Manifest:
    """Raises InputError where this is no manifest."""
    try:
        return msgspec.msgpack.decode(data, type=Manifest)
    except msgspec.DecodeError as error:
        raise InputError(f"{len(data)} bytes are no manifest: {error}") from None


def manifest_manifest(announced: AnnouncedVersion) -> Manifest:
    """Return the manifest of a manifest: one file of one chunk, fetched like any other."""
    file = WeightFile("manifest", announced.size, (announced.digest,))
    return Manifest(announced.kind, announced.version, MAX_MANIFEST_BYTES, (file,))


def patch_manifest(manifest: Manifest) -> Manifest:
    """Return the manifest of a version's patch: one file, fetched like any other."""
    patch = manifest.patch
    assert isinstance(patch, Patch), "this version has no patch"
    file = WeightFile("patch", patch.size, patch.chunks)
    return Manifest(manifest.kind, manifest.version, manifest.chunk_bytes, (file,))
