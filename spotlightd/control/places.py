"""Where the control socket and the state are, for root and for an ordinary user."""

import os
from collections.abc import Mapping
from pathlib import Path

SYSTEM_SOCKET = Path("/run/spotlight/control.sock")
SYSTEM_STATE = Path("/var/lib/spotlight")


def user_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder that holds the state and the socket of an ordinary user's daemon."""
    base = environ.get("XDG_STATE_HOME") or os.path.join(environ.get("HOME", "/"), ".local/state")
    return Path(base) / "spotlight"


def user_socket(environ: Mapping[str, str]) -> Path:
    return user_folder(environ) / "control.sock"


def find_socket(given: Path | None, environ: Mapping[str, str]) -> Path:
    """Return the socket to talk to: as given, from the environment, the system's, the user's."""
    if given is not None:
        return given
    if environ.get("SPOTLIGHT_CONTROL_SOCKET"):
        return Path(environ["SPOTLIGHT_CONTROL_SOCKET"])
    mine = user_socket(environ)
    return mine if mine.exists() and not SYSTEM_SOCKET.exists() else SYSTEM_SOCKET


def find_home(environ: Mapping[str, str]) -> Path:
    """Return the daemon's folder: from the environment, the user's own, the system's."""
    if environ.get("SPOTLIGHT_STORE_STATE_DIR"):
        return Path(environ["SPOTLIGHT_STORE_STATE_DIR"])
    mine = user_folder(environ)
    return mine if (mine / "daemon.lock").exists() else SYSTEM_STATE


def find_state(environ: Mapping[str, str]) -> Path:
    """Return the state directory to read: the daemon's folder, or the newest run's in it."""
    home = find_home(environ)
    if (home / "spotlight.db").exists():
        return home
    runs = list(home.glob("runs/*/spotlight.db"))
    return max(runs, key=lambda path: path.stat().st_mtime).parent if runs else home
