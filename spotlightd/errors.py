"""The errors a user may meet, and the exit code of each.

    SpotlightError
    ├── UsageError        64  the command line or a request to the control socket is wrong
    ├── UnreachableError  69  the daemon does not answer
    ├── TryAgainError     75  a passing condition: disk full, another daemon on the same state
    ├── VersionSkewError  76  the other side speaks another protocol
    ├── NotAuthorisedError 77 a token or key was refused
    └── InputError        78  a file that was read is not what it must be
        └── ConfigError   78  the configuration, with the key that is wrong

A message says what was read, where, what was expected and what to do. Command-line entry points
print it as one line and exit with `exit_code`; any other exception there is a bug.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command (DESIGN: contracts)."""

    OK = 0
    FAILURE = 1
    DRAINED = 3
    USAGE = 64
    UNREACHABLE = 69
    TRY_AGAIN = 75
    VERSION_SKEW = 76
    NOT_AUTHORISED = 77
    INPUT = 78


class SpotlightError(Exception):
    """A failure that is explained to the user in one sentence."""

    exit_code: ExitCode = ExitCode.FAILURE


class UsageError(SpotlightError):
    exit_code = ExitCode.USAGE


class UnreachableError(SpotlightError):
    exit_code = ExitCode.UNREACHABLE


class TryAgainError(SpotlightError):
    exit_code = ExitCode.TRY_AGAIN


class VersionSkewError(SpotlightError):
    exit_code = ExitCode.VERSION_SKEW


class NotAuthorisedError(SpotlightError):
    exit_code = ExitCode.NOT_AUTHORISED


class InputError(SpotlightError):
    exit_code = ExitCode.INPUT


class ConfigError(InputError):
    """A configuration value that cannot be used."""
