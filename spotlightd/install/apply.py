"""Does the steps, or says what they would do. What is as it should be is not touched."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

from spotlightd.atomic import write_file
from spotlightd.errors import InputError, NotAuthorisedError, SpotlightError
from spotlightd.install.steps import Drop, Put, Run, Step

Say = Callable[[str], None]


def apply(steps: Iterable[Step], root: Path | None, dry_run: bool, say: Say) -> int:
    """Do the steps in order and return how many files changed.

    Args:
        root: in front of every path; None for this system.
        dry_run: nothing is written or run.
        say: gets a line per step.

    Raises:
        NotAuthorisedError: this user may not write there.
        InputError: a tool is missing, or the root is no folder.
        SpotlightError: a tool failed, with what it said.
    """
    if root is not None and not root.is_dir():
        raise InputError(f"--root {root} is not a folder: make it first")
    changed = 0
    for step in steps:
        match step:
            case Put():
                changed += _put(step, inside(root, step.path), dry_run, say)
            case Drop():
                changed += _drop(inside(root, step.path), dry_run, say)
            case Run():
                _run(step, dry_run, say)
    return changed


def inside(root: Path | None, path: PurePosixPath) -> Path:
    """Return where `path` of the installed system is, seen from here."""
    return Path(path) if root is None else root / path.relative_to("/")


def _put(step: Put, path: Path, dry_run: bool, say: Say) -> bool:
    try:
        there = path.read_bytes() if path.exists() else None
        if there == step.content or (there is not None and step.keep):
            say(f"{'keep' if step.keep else 'unchanged':<10} {path}")
            return False
        say(f"{'replace' if there is not None else 'write':<10} {path}")
        if not dry_run:
            write_file(path, step.content)
            path.chmod(step.mode)
    except PermissionError as error:
        raise _not_allowed(error, path) from None
    return True


def _drop(path: Path, dry_run: bool, say: Say) -> bool:
    if not path.exists():
        return False
    say(f"{'remove':<10} {path}")
    try:
        if dry_run:
            return True
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    except PermissionError as error:
        raise _not_allowed(error, path) from None
    return True


def _run(step: Run, dry_run: bool, say: Say) -> None:
    say(f"{'run':<10} {' '.join(step.argv)}")
    if dry_run:
        return
    try:
        result = subprocess.run(step.argv, capture_output=True, text=True, timeout=180)
    except FileNotFoundError:
        if step.needed:
            raise InputError(
                f"{step.argv[0]} is not here: this system does not run systemd; start the command "
                f"by hand, or with what this system has for services"
            ) from None
        return
    if result.returncode and step.needed:
        said = " ".join(result.stderr.split()) or f"exit code {result.returncode}"
        raise SpotlightError(f"`{' '.join(step.argv)}` failed: {said[-400:]}")


def _not_allowed(error: OSError, path: Path) -> NotAuthorisedError:
    return NotAuthorisedError(
        f"user {os.geteuid()} may not write {path} ({error.strerror}): use sudo, or --root DIR"
    )
