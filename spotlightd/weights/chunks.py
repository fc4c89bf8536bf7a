"""Chunks on disk: what this host serves, and downloads that become it once they are whole."""

import os
from pathlib import Path

from spotlightd.atomic import digest_of, explain, sync_folders
from spotlightd.errors import InputError
from spotlightd.weights.manifest import ChunkPlace, chunk_places
from spotlightd.wire.messages import Manifest

Key = tuple[str, int]
"""(kind, version)."""


class Download:
    """A manifest's files being filled, each under a temporary name beside its final one.

    What an earlier process left is verified chunk by chunk and kept.
    """

    def __init__(self, manifest: Manifest, folder: Path) -> None:
        self.manifest = manifest
        self.folder = folder
        self._missing: dict[str, list[ChunkPlace]] = {}
        for place in chunk_places(manifest):
            self._final(place.path)
            if not self._is_there(place):
                self._missing.setdefault(place.digest, []).append(place)

    @property
    def missing(self) -> list[str]:
        """Digests still to fetch, in file order."""
        return list(self._missing)

    def write(self, digest: str, data: bytes | memoryview) -> bool:
        """Take a chunk; False, and nothing written, when it is not what its digest says.

        Raises TryAgainError when the disk is full.
        """
        places = self._missing.get(digest)
        if places is None:
            return True
        if digest_of(data) != digest or memoryview(data).nbytes != places[0].size:
            return False
        for place in places:
            path = self._partial(place.path)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
                try:
                    os.pwrite(descriptor, data, place.offset)
                finally:
                    os.close(descriptor)
            except OSError as error:
                raise explain(error, path) from error
        del self._missing[digest]
        return True

    def finish(self) -> None:
        """Put the files in place, durably. Raises InputError while chunks are missing."""
        if self._missing:
            raise InputError(f"{len(self._missing)} chunks of {self.folder} are missing")
        folders = set()
        for file in self.manifest.files:
            partial, final = self._partial(file.path), self._final(file.path)
            folders.update({final.parent, final.parent.parent})
            if partial.exists():
                with partial.open("rb+") as opened:
                    opened.truncate(file.size)
                    os.fsync(opened.fileno())
                os.replace(partial, final)
            elif not file.size:
                final.parent.mkdir(parents=True, exist_ok=True)
                final.touch()
        sync_folders(folders)

    def _is_there(self, place: ChunkPlace) -> bool:
        for path in (self._final(place.path), self._partial(place.path)):
            data = _pread(path, place.offset, place.size)
            if data is not None and digest_of(data) == place.digest:
                return True
        return False

    def _final(self, path: str) -> Path:
        final = self.folder / path
        if not final.resolve().is_relative_to(self.folder.resolve()):
            raise InputError(f"manifest names a file outside its folder: {path}")
        return final

    def _partial(self, path: str) -> Path:
        final = self._final(path)
        return final.with_name(f".partial-{final.name}")


class ChunkStore:
    """Finds any chunk that this host holds completely, by digest."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[Path, ChunkPlace]] = {}
        self._kept: dict[Key, tuple[Manifest, Path]] = {}

    def add(self, manifest: Manifest, folder: Path) -> None:
        """Serve a manifest's files from the folder where they lie, without a copy."""
        self._kept[manifest.kind, manifest.version] = (manifest, folder)
        for place in chunk_places(manifest):
            self._places[place.digest] = (folder / place.path, place)

    def drop(self, kind: str, version: int) -> Path | None:
        """Serve a version no more; return its folder, or None where it was not served."""
        kept = self._kept.pop((kind, version), None)
        if kept is None:
            return None
        self._places = {}
        for manifest, folder in list(self._kept.values()):
            self.add(manifest, folder)
        return kept[1]

    def manifest(self, kind: str, version: int) -> Manifest | None:
        kept = self._kept.get((kind, version))
        return kept[0] if kept else None

    def versions(self, kind: str) -> list[int]:
        return sorted(version for k, version in self._kept if k == kind)

    def read(self, digest: str) -> bytes | None:
        """Return a chunk, or None where it is not held (any more)."""
        found = self._places.get(digest)
        if found is None:
            return None
        path, place = found
        return _pread(path, place.offset, place.size)


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
