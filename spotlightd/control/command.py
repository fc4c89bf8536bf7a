"""What all commands of `spotlightctl` share: options, the client, and how answers are printed."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from spotlightd.control import api
from spotlightd.control.client import ControlClient
from spotlightd.control.places import find_socket, find_state

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Socket = Annotated[
    Path | None,
    typer.Option(
        "--socket",
        readable=False,
        help="The daemon's control socket. Default: $SPOTLIGHT_CONTROL_SOCKET, else "
        "/run/spotlight/control.sock, else the one in ~/.local/state/spotlight.",
    ),
]
StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir", readable=False, help="Read this state directory instead of asking a daemon."
    ),
]


def group(help: str, example: str, **options: Any) -> typer.Typer:
    """Return a command with commands below it."""
    return typer.Typer(help=help, epilog=f"Example: {example}", rich_markup_mode=None, **options)


def client_of(socket: Path | None) -> ControlClient:
    return ControlClient(find_socket(socket, os.environ))


def state_of(state_dir: Path | None) -> Path:
    return state_dir or find_state(os.environ)


def print_json(answer: Any) -> None:
    print(msgspec.json.encode(answer).decode(), flush=True)


def print_accepted(answer: api.Accepted, json: bool) -> None:
    if json:
        print_json(answer)
    else:
        print(answer.accepted)


def write_out(content: bytes, out: Path | None) -> None:
    """Write to a file, or to stdout, as bytes."""
    if out is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        out.write_bytes(content)
        print(out)
