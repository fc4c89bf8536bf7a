"""`spotlightd keys`: look at the server key, and replace it without stopping the fleet."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotlightd.control.places import find_home
from spotlightd.errors import NotAuthorisedError

if TYPE_CHECKING:
    from spotlightd.fleet.keys import ServerKeys

app = typer.Typer(
    help="Show, rotate or retire the server key that join tokens pin.",
    epilog="Example: spotlightd keys rotate",
    rich_markup_mode=None,
)
SYSTEM_KEY = Path("/etc/spotlight/server.key")
File = Annotated[
    Path | None,
    typer.Option(
        "--file",
        readable=False,
        help="Default: /etc/spotlight/server.key, else the one in the state directory.",
    ),
]
THEN = "restart the daemon for it: systemctl restart spotlightd"


@app.command("show", epilog="Example: spotlightd keys show")
def show(file: File = None) -> None:
    """Print the public server keys, and where they are kept."""
    path, keys = _read(file)
    print(f"{keys.public}  current, in {path}")
    if keys.previous is not None:
        print(f"{keys.previous.public}  previous, still served")


@app.command("rotate", epilog="Example: spotlightd keys rotate")
def rotate(file: File = None) -> None:
    """Make a new server key; the one before stays valid until it is retired."""
    from spotlightd.fleet.keys import rotated

    keys = _replace(file, rotated)
    print(f"new tokens will pin {keys.public}; agents move to it by themselves; {THEN}")


@app.command("retire", epilog="Example: spotlightd keys retire")
def retire(file: File = None) -> None:
    """End a rotation: agents and tokens that still pin the previous key are refused."""
    from spotlightd.fleet.keys import retired

    _replace(file, retired)
    print(f"the previous key is gone; {THEN}")


def _read(file: Path | None) -> tuple[Path, "ServerKeys"]:
    from spotlightd.fleet.keys import read_keys

    path = file or (SYSTEM_KEY if SYSTEM_KEY.exists() else None)
    path = path or find_home(os.environ) / "keys/server.key"
    return path, read_keys(path)


def _replace(file: Path | None, change: "Callable[[ServerKeys], ServerKeys]") -> "ServerKeys":
    from spotlightd.fleet.keys import write_keys

    path, keys = _read(file)
    if not os.access(path.parent, os.W_OK):
        raise NotAuthorisedError(f"this user may not write {path}: use sudo")
    keys = change(keys)
    write_keys(path, keys)
    return keys
