"""What the commands have in common: exit codes, one-line errors, durations.

Typer's own error boxes and exit code 2 are replaced: a usage error is one line and exits 64.
"""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from spotlightd import __version__
from spotlightd.errors import ExitCode, SpotlightError, UsageError

# Typer has used click and later its own copy of it; either way, BadParameter is public, and its
# base is the usage error.
_TyperUsageError: type[Exception] = typer.BadParameter.__bases__[0]

_INTERRUPTED = 130
_PIPE_CLOSED = 141

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")

# With typer's own check a file that may not be read would be wrong usage (64): what reads it says
# better what is wrong, and exits with the code for that.
ConfigFile = Annotated[Path, typer.Argument(help="TOML file.", readable=False)]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override one key; may be repeated."),
]


def assignments(sets: Sequence[str] | None) -> dict[str, str]:
    """Return what `--set` was given, text by dotted key. Raises UsageError."""
    found = {}
    for text in sets or ():
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text}: expected section.key=value, such as run.iterations=10")
        found[key.strip()] = value.strip()
    return found


def add_version(app: typer.Typer, name: str) -> None:
    """Give a command line the option `--version`."""

    def show(wanted: bool) -> None:
        if wanted:
            print(f"{name} {__version__}")
            raise typer.Exit

    @app.callback()
    def options(
        version: Annotated[
            bool, typer.Option("--version", callback=show, is_eager=True, help="Print the version.")
        ] = False,
    ) -> None:
        pass


def run_app(app: typer.Typer, name: str, arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; errors become one line on stderr."""
    command = typer.main.get_command(app)
    try:
        result = command.main(
            args=None if arguments is None else list(arguments),
            prog_name=name,
            standalone_mode=False,
        )
    except SpotlightError as error:
        return _complain(name, str(error), error.exit_code)
    except _TyperUsageError as error:
        return _usage(name, error)
    except (typer.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has left; keep the interpreter from complaining when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    return result if isinstance(result, int) else ExitCode.OK


def seconds(text: str) -> float:
    """Read a duration such as `90`, `90s`, `15m`, `2h` or `1d`. Raises UsageError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"'{text}' is not a duration: write a number and s, m, h or d (15m)")
    return float(match[1]) * _UNITS[match[2]]


def _usage(name: str, error: Exception) -> int:
    context = getattr(error, "ctx", None)
    where = context.command_path if context else name
    message = str(getattr(error, "format_message", error.__str__)()).rstrip(".")
    return _complain(name, f"{message}; see `{where} --help`", ExitCode.USAGE)


def _complain(name: str, message: str, code: int) -> int:
    print(f"{name}: {' '.join(message.split())}", file=sys.stderr)
    return int(code)
