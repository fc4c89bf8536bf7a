"""Digests of files that were hashed before: a 41 GB model is hashed once, not at each start."""

import logging
import os
from pathlib import Path

import msgspec

from spotlightd.atomic import write_file

logger = logging.getLogger(__name__)


class _Row(msgspec.Struct, frozen=True):
    size: int
    mtime_ns: int
    inode: int
    chunk_bytes: int
    chunks: tuple[str, ...]


class RememberedDigests:
    """Chunk digests by path, valid while size, time of change and inode are the same.

    A damaged or missing table only costs the time to hash again. Receivers check every chunk, so
    a file that was changed behind an equal time is noticed as chunks that do not fit.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[str, _Row] = {}
        try:
            self._rows = msgspec.msgpack.decode(path.read_bytes(), type=dict[str, _Row])
        except FileNotFoundError:
            pass
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("%s cannot be read (%s): files are hashed again", path, error)

    def find(self, file: Path, chunk_bytes: int) -> tuple[str, ...] | None:
        row, stat = self._rows.get(str(file.resolve())), file.stat()
        same = row is not None and (row.size, row.mtime_ns, row.inode, row.chunk_bytes) == (
            stat.st_size,
            stat.st_mtime_ns,
            stat.st_ino,
            chunk_bytes,
        )
        return row.chunks if row is not None and same else None

    def note(
        self, file: Path, stat: os.stat_result, chunk_bytes: int, chunks: tuple[str, ...]
    ) -> None:
        """Keep what was found; `stat` was taken before the file was read."""
        self._rows[str(file.resolve())] = _Row(
            stat.st_size, stat.st_mtime_ns, stat.st_ino, chunk_bytes, chunks
        )

    def save(self) -> None:
        """Write the table, without files that are gone. Raises TryAgainError on a full disk."""
        self._rows = {path: row for path, row in self._rows.items() if os.path.exists(path)}
        write_file(self._path, msgspec.msgpack.encode(self._rows))
