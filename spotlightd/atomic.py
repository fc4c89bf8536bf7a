"""Files that are either whole or absent, whatever happens in between, and their digests."""

import errno
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from blake3 import blake3

from spotlightd.errors import SpotlightError, TryAgainError

Buffer = bytes | bytearray | memoryview


def digest_of(data: Buffer) -> str:
    """Return the BLAKE3 digest in hex."""
    return blake3(data).hexdigest()


def write_file(path: Path, data: Buffer, sync_folder: bool = True) -> None:
    """Write `path` by temporary file, fsync and rename, then fsync its folder.

    Args:
        path: its folder is made where it is missing.
        data: whole content.
        sync_folder: False where the caller syncs the folder once for many files.

    Raises:
        TryAgainError: the disk is full; whatever stood at `path` stands as before.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    except OSError as error:
        raise explain(error, path) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        raise explain(error, path) from error
    if sync_folder:
        sync_folders([path.parent])


def sync_folders(folders: Iterable[Path]) -> None:
    """Make the names in these folders durable."""
    for folder in set(folders):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def explain(error: OSError, path: Path) -> SpotlightError:
    """Turn a failed write into the sentence for the user."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return TryAgainError(
            f"disk full while writing {path}: nothing acknowledged is lost; free some space and "
            f"start again"
        )
    return TryAgainError(f"cannot write {path}: {error.strerror}")
