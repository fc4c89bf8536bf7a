"""Whether the service's user, inside its sandbox, can reach what the unit starts.

A virtual environment in somebody's home is the usual trap: the unit hides homes, and systemd only
says "203/EXEC".
"""

import stat
import sys
from pathlib import Path

import spotlightd
from spotlightd.errors import InputError

HIDDEN = {"/home": "ProtectHome", "/root": "ProtectHome", "/run/user": "ProtectHome",
          "/tmp": "PrivateTmp", "/var/tmp": "PrivateTmp"}  # fmt: skip
"""Folders that the units' sandbox hides or replaces, and by which setting."""


def installed_command(program: str) -> Path:
    """Return the console script of this installation. Raises InputError where there is none."""
    path = Path(sys.executable).parent / program
    if not path.is_file():
        raise InputError(f"no {program} beside {sys.executable}: install it there with pip first")
    return path


def check_reach(command: Path) -> None:
    """Check the command, its interpreter and this package. Raises InputError."""
    package = Path(spotlightd.__file__).parent
    for path in (command, Path(sys.executable).resolve(), Path(sys.base_prefix), package):
        why = obstacle(path)
        if why:
            raise InputError(
                f"the service could not use {path}: {why}; install for everybody, such as into "
                f"/opt/spotlight: python3 -m venv /opt/spotlight"
            )


def obstacle(path: Path) -> str:
    """Return why the service's user cannot use `path`, or an empty string."""
    for folder, setting in HIDDEN.items():
        if path.is_relative_to(folder):
            return f"it never sees {folder} ({setting} in its unit)"
    for part in [*reversed(path.parents), path]:
        needed = stat.S_IXOTH if part.is_dir() else stat.S_IROTH
        if not part.stat().st_mode & needed:
            return f"{part} is closed to others"
    return ""
