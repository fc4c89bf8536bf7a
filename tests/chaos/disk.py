"""A small disk for the state directory, and what goes wrong with disks."""

import contextlib
import errno
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

TAIL_BYTES = 32 * 1024
"""A torn write loses the end of the log, not its middle."""


@dataclass
class Disk:
    """A tmpfs where mounting is permitted; else a plain folder that cannot be filled."""

    folder: Path
    size_mb: int
    mounted: bool = False

    def mount(self) -> bool:
        self.folder.mkdir(parents=True)
        options = f"size={self.size_mb}m,mode=0700"
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.folder)]
        with contextlib.suppress(FileNotFoundError):
            self.mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
        return self.mounted

    def fill(self) -> None:
        """Leave next to no byte free, whatever is written meanwhile."""
        with self._ballast.open("wb") as file:
            size, step = 0, 64 * 2**20
            while step >= os.statvfs(self.folder).f_frsize:
                try:
                    os.posix_fallocate(file.fileno(), size, step)
                    size += step
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step //= 2

    def clear(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def unmount(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)

    @property
    def _ballast(self) -> Path:
        return self.folder / "ballast"


def flip_a_byte(path: Path, draw: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(draw * len(data))] ^= 0xFF
    path.write_bytes(data)


def truncate_tail(path: Path, draw: float) -> int:
    """Cut the end off a file, as a write that did not reach the disk; return the bytes lost."""
    size = path.stat().st_size
    lost = min(int(1 + draw * TAIL_BYTES), size)
    os.truncate(path, size - lost)
    return lost
