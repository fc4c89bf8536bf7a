"""Chunks on this host: what it serves, mapped into memory, and downloads being filled.

    Download.write -> file -> ChunkStore.view -> ZeroMQ -> socket     (no copy in between)

Files may lie on a disk or in shared memory; whoever maps one shares its pages with everybody else
on the host.
"""

import mmap
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from spotlightd.atomic import digest_of, explain
from spotlightd.errors import InputError
from spotlightd.weights.manifest import ChunkPlace, chunk_order, chunk_places, manifest_digest
from spotlightd.wire.messages import HeldWeights
from spotlightd.wire.weights import Manifest

Key = tuple[str, int]
"""(kind, version)."""
PATCH = "/patch"
"""The part of a version that turns the one before into it."""
MANIFEST = "/manifest"
"""The part that says what the others are."""


class Download:
    """A manifest's files being filled, each under a temporary name beside its final one.

    What an earlier process left is verified chunk by chunk and kept; therefore nothing is synced
    to the disk: what a power cut takes is fetched again.

    Args:
        held: chunks that lie on this host already, in another version, are copied from there.
    """

    def __init__(self, manifest: Manifest, folder: Path, held: "ChunkStore | None" = None) -> None:
        self.manifest = manifest
        self.folder = folder
        self.root = manifest_digest(manifest)
        self.order = chunk_order(manifest)
        self.index = {digest: number for number, digest in enumerate(self.order)}
        self.reused = 0
        """Chunks copied from other versions."""
        self._missing: dict[str, list[ChunkPlace]] = {}
        for place in chunk_places(manifest):
            self._final(place.path)
            if not self._is_there(place):
                self._missing.setdefault(place.digest, []).append(place)
        for path in {place.path for places in self._missing.values() for place in places}:
            self._keep(path)
        for digest in self.missing if held else ():
            view = held.view(digest) if held else None
            if view is not None and self.write(digest, view):
                self.reused += 1

    @property
    def missing(self) -> list[str]:
        """Digests still to fetch, in file order."""
        return list(self._missing)

    @property
    def missing_mask(self) -> int:
        """The same as bits: bit i is the i-th of `order`."""
        return sum(1 << self.index[digest] for digest in self._missing)

    def write(self, digest: str, data: bytes | memoryview) -> bool:
        """Take a chunk; False, and nothing written, when it is not what its digest says.

        Raises TryAgainError when the disk is full.
        """
        places = self._missing.get(digest)
        if places is None:
            return True
        if memoryview(data).nbytes != places[0].size or digest_of(data) != digest:
            return False
        for place in places:
            path = self._partial(place.path)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
                try:
                    self._extend(descriptor, place.path)
                    _pwrite(descriptor, data, place.offset)
                finally:
                    os.close(descriptor)
            except OSError as error:
                raise explain(error, path) from error
        self._missing.pop(digest, None)
        return True

    def finish(self) -> None:
        """Put the files in place. Raises InputError while chunks are missing."""
        if self._missing:
            raise InputError(f"{len(self._missing)} chunks of {self.folder} are missing")
        for file in self.manifest.files:
            partial, final = self._partial(file.path), self._final(file.path)
            if partial.exists():
                os.truncate(partial, file.size)
                os.replace(partial, final)
            elif not file.size:
                final.parent.mkdir(parents=True, exist_ok=True)
                final.touch()

    def path_of(self, path: str) -> Path:
        """Return where a file lies now, complete or not."""
        partial = self._partial(path)
        return partial if partial.exists() else self._final(path)

    def _extend(self, descriptor: int, path: str) -> None:
        """Whoever maps the file needs its full length; a sparse one takes no room."""
        size = next(file.size for file in self.manifest.files if file.path == path)
        if os.fstat(descriptor).st_size < size:
            os.ftruncate(descriptor, size)

    def _is_there(self, place: ChunkPlace) -> bool:
        data = _pread(self.path_of(place.path), place.offset, place.size)
        return data is not None and digest_of(data) == place.digest

    def _keep(self, path: str) -> None:
        """What an older content of a whole file shares with the new one lies where that grows.

        Raises TryAgainError when the disk is full.
        """
        partial, final = self._partial(path), self._final(path)
        if final.exists() and not partial.exists():
            try:
                shutil.copyfile(final, partial)
            except OSError as error:
                raise explain(error, partial) from error

    def _final(self, path: str) -> Path:
        final = self.folder / path
        if not final.resolve().is_relative_to(self.folder.resolve()):
            raise InputError(f"manifest names a file outside its folder: {path}")
        return final

    def _partial(self, path: str) -> Path:
        final = self._final(path)
        return final.with_name(f".partial-{final.name}")


class _Mapped:
    """A file in memory. Its pages go when nobody holds a view any more."""

    def __init__(self, path: Path, size: int) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        self._size = size
        self._data = mmap.mmap(self._descriptor, size, prot=mmap.PROT_READ)

    def view(self, offset: int, size: int) -> memoryview | None:
        """None where the file was cut off meanwhile: touching such pages would kill the process."""
        if os.fstat(self._descriptor).st_size < self._size:
            return None
        return memoryview(self._data)[offset : offset + size]

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


class _Held:
    """One version: its files, and which of its chunks are here."""

    def __init__(
        self, manifest: Manifest, folder: Path, download: Download | None, part: str
    ) -> None:
        self.manifest = manifest
        self.part = part
        self.folder = folder
        self.download = download
        order = download.order if download else chunk_order(manifest)
        self.index = {digest: number for number, digest in enumerate(order)}
        missing = set(download.missing) if download else set()
        self.have = sum(1 << i for digest, i in self.index.items() if digest not in missing)
        self._sizes = {file.path: file.size for file in manifest.files}
        self._places: dict[str, ChunkPlace] = {}
        for place in chunk_places(manifest):
            self._places.setdefault(place.digest, place)
        self._mapped: dict[str, _Mapped] = {}

    @property
    def complete(self) -> bool:
        return self.have.bit_count() == len(self.index)

    def view(self, digest: str) -> memoryview | None:
        if not self.have >> self.index[digest] & 1:
            return None
        place = self._places[digest]
        try:
            if place.path not in self._mapped:
                path = self.folder / place.path
                if self.download is not None:
                    path = self.download.path_of(place.path)
                self._mapped[place.path] = _Mapped(path, self._sizes[place.path])
        except (OSError, ValueError):
            return None
        return self._mapped[place.path].view(place.offset, place.size)


class ChunkStore:
    """Finds any chunk that this host has, by digest, also of versions that are still arriving.

    Invariant: a chunk in `_by_digest` belongs to a version in `_held`.
    """

    def __init__(self) -> None:
        self.on_drop: Callable[[str], None] = lambda root: None
        """Told the root hash of each version that is served no more."""
        self._held: dict[str, _Held] = {}
        self._roots: dict[Key, str] = {}
        self._by_digest: dict[str, list[str]] = {}

    def add(self, manifest: Manifest, folder: Path, part: str = "") -> str:
        """Serve a manifest's files from the folder where they lie; return its root hash."""
        return self._put(_Held(manifest, folder, None, part))

    def begin(self, download: Download, part: str = "") -> str:
        """Serve what has arrived of a download, and what `gained` adds; return its root hash.

        Args:
            part: names what belongs to a version beside its files: its patch, its manifest.
        """
        return self._put(_Held(download.manifest, download.folder, download, part))

    def gained(self, root: str, digest: str) -> int:
        """A chunk was verified and written; return how many there are now."""
        held = self._held.get(root)
        if held is None:
            return 0
        held.have |= 1 << held.index[digest]
        return held.have.bit_count()

    def drop(self, kind: str, version: int) -> Path | None:
        """Serve a version no more; return its folder, or None where it was not served."""
        for part in (PATCH, MANIFEST):
            self._drop((f"{kind}{part}", version))
        return self._drop((kind, version))

    def _drop(self, key: Key) -> Path | None:
        root = self._roots.pop(key, None)
        if root is None:
            return None
        held = self._held.pop(root)
        for digest in held.index:
            roots = self._by_digest[digest]
            roots.remove(root)
            if not roots:
                del self._by_digest[digest]
        self.on_drop(root)
        return held.folder

    def manifest(self, kind: str, version: int) -> Manifest | None:
        """Return the manifest of a version that is here completely."""
        root = self._roots.get((kind, version))
        return self._held[root].manifest if root and self._held[root].complete else None

    def root(self, kind: str, version: int) -> str | None:
        return self._roots.get((kind, version))

    def folder(self, kind: str, version: int) -> Path | None:
        root = self._roots.get((kind, version))
        return self._held[root].folder if root else None

    def versions(self, kind: str) -> list[int]:
        """Return the versions that are here completely."""
        return sorted(
            v for (k, v), root in self._roots.items() if k == kind and self._held[root].complete
        )

    def held(self) -> tuple[HeldWeights, ...]:
        """Return all that is served, for the heartbeat."""
        return tuple(
            HeldWeights(
                held.manifest.kind, held.manifest.version, held.have.bit_count(), held.complete
            )
            for held in self._held.values()
            if not held.part
        )

    def have(self, root: str) -> int:
        """Return the mask of chunks that are here; 0 for an unknown version."""
        held = self._held.get(root)
        return held.have if held else 0

    def chunk_bytes(self, root: str) -> int:
        """Return the size of a version's chunks; 0 for an unknown version."""
        held = self._held.get(root)
        return held.manifest.chunk_bytes if held else 0

    def view(self, digest: str) -> memoryview | None:
        """Return a chunk where it lies in memory, or None where it is not held (any more)."""
        for root in self._by_digest.get(digest, ()):
            view = self._held[root].view(digest)
            if view is not None:
                return view
        return None

    def _put(self, held: _Held) -> str:
        key = (held.manifest.kind + held.part, held.manifest.version)
        self._drop(key)
        root = held.download.root if held.download else manifest_digest(held.manifest)
        self._held[root], self._roots[key] = held, root
        for digest in held.index:
            self._by_digest.setdefault(digest, []).append(root)
        return root


def _pwrite(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view.nbytes:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def _pread(path: Path, offset: int, size: int) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        data = os.pread(descriptor, size, offset)
    finally:
        os.close(descriptor)
    return data if len(data) == size else None
