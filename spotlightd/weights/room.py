"""Whether a version finds room on this host: free bytes, the budget, and what may be evicted."""

import os
from dataclasses import dataclass
from pathlib import Path

MARGIN = 256 * 2**20
"""Bytes of a file system that are left to others, where no budget is set."""


@dataclass(frozen=True)
class Room:
    """The folder where weights are kept.

    Args:
        folder: need not exist yet.
        budget: bytes that weights may take in all; None: all that is free but a margin.
    """

    folder: Path
    budget: int | None = None

    def free(self) -> int:
        """Return the bytes that further weights may take now."""
        existing = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        stat = os.statvfs(existing)
        disk = stat.f_bavail * stat.f_frsize
        if self.budget is None:
            return max(disk - MARGIN, 0)
        return max(min(disk, self.budget - self.used()), 0)

    def used(self) -> int:
        """Return the bytes that are allocated below the folder; sparse files count as written."""
        return sum(
            path.stat().st_blocks * 512
            for path in self.folder.rglob("*")
            if path.is_file() and not path.is_symlink()
        )


def sentence(what: str, needed: int, free: int, folder: Path) -> str:
    """Return what is said to the user when there is not enough."""
    return (
        f"{what} needs {needed / 1e9:.2f} GB in {folder}, which has {free / 1e9:.2f} GB to give: "
        f"free some space, name another folder with --weights-dir, or raise --weights-budget"
    )
