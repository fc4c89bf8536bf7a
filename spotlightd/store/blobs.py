"""Content-addressed files: `<root>/<first two hex digits>/<BLAKE3 of the content>`."""

from collections.abc import Iterable
from pathlib import Path

from spotlightd.atomic import Buffer, digest_of, sync_folders, write_file
from spotlightd.errors import InputError


class Blobs:
    """Blobs below one folder. Writing the same content twice is one file."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, digest: str) -> Path:
        return self._root / digest[:2] / digest

    def put_many(self, contents: Iterable[Buffer]) -> list[str]:
        """Write blobs durably and return their digests: one fsync a file, one a folder.

        Raises TryAgainError when the disk is full.
        """
        digests, folders = [], set()
        for content in contents:
            digest = digest_of(content)
            path = self.path(digest)
            if not path.exists():
                folders.update({path.parent, path.parent.parent})
                write_file(path, content, sync_folder=False)
            digests.append(digest)
        sync_folders(folders)
        return digests

    def get(self, digest: str) -> bytes:
        """Return a blob. Raises InputError when it is missing or its content has changed."""
        path = self.path(digest)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(f"cannot read blob {path}: {error.strerror}") from None
        if digest_of(content) != digest:
            raise InputError(f"blob {path} is damaged: its content no longer has its digest")
        return content

    def discard(self, digest: str) -> None:
        """Delete a blob whose content is no good: the next `put_many` writes it anew."""
        self.path(digest).unlink(missing_ok=True)

    def sweep(self, keep: set[str]) -> int:
        """Delete every blob that is not in `keep`; return how many."""
        removed = 0
        for path in self._root.glob("[0-9a-f][0-9a-f]/*"):
            if path.name not in keep:
                path.unlink(missing_ok=True)
                removed += 1
        return removed
