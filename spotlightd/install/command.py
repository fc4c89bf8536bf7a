"""What both `install` commands do, once each has said what is its own."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from spotlightd.errors import NotAuthorisedError, UsageError
from spotlightd.install.apply import apply, inside
from spotlightd.install.reach import check_reach, installed_command
from spotlightd.install.steps import CONFIG_DIR, Put, install_steps, uninstall_steps
from spotlightd.install.units import SERVICES, UNIT_DIR, Service

Root = Annotated[
    Path | None,
    typer.Option("--root", metavar="DIR", help="Install into the system in this folder."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
Start = Annotated[bool, typer.Option("--start", help="Start it, too; it restarts if it runs.")]
Uninstall = Annotated[bool, typer.Option("--uninstall", help="Stop and remove it; data stays.")]
Purge = Annotated[bool, typer.Option("--purge", help="With --uninstall: remove its data, too.")]


@dataclass(frozen=True)
class Wanted:
    """The options that both commands have."""

    root: Path | None = None
    dry_run: bool = False
    start: bool = False
    uninstall: bool = False
    purge: bool = False


def run(
    service: Service,
    arguments: Sequence[str],
    extra: Sequence[Put],
    wanted: Wanted,
    owned: Sequence[PurePosixPath] = (),
) -> None:
    """Install or uninstall a service, and print what was done.

    Args:
        arguments: of the program, in its unit.
        extra: files of this service alone.
        owned: folders that root made for the service.

    Raises:
        UsageError: options that contradict one another.
        NotAuthorisedError: not root, and no other root is given.
        InputError, SpotlightError: as `apply`.
    """
    if wanted.purge and not wanted.uninstall:
        raise UsageError("--purge removes data and needs --uninstall beside it")
    if wanted.start and (wanted.uninstall or wanted.root):
        raise UsageError("--start goes neither with --uninstall nor with --root")
    check_root(service, wanted)
    root = None if wanted.root is None else wanted.root.resolve()
    if wanted.uninstall:
        _uninstall(service, root, wanted)
        return
    command = installed_command(service.program)
    if root is None:
        check_reach(command)
    elif command.is_relative_to(root):
        command = Path("/") / command.relative_to(root)
    steps = install_steps(service, [str(command), *arguments], extra, root, wanted.start, owned)
    changed = apply(steps, root, wanted.dry_run, print)
    done = f"{changed} file(s) changed" if changed else "everything was in place"
    print(f"{service.program}: {'nothing was done' if wanted.dry_run else done}")


def check_root(service: Service, wanted: Wanted) -> None:
    """Raise NotAuthorisedError where only root can do what is wanted."""
    if wanted.root is None and os.geteuid() and not wanted.dry_run:
        raise NotAuthorisedError(f"only root may change units: use sudo for {service.program}")


def _uninstall(service: Service, root: Path | None, wanted: Wanted) -> None:
    others_stay = any(
        inside(root, UNIT_DIR / other.units[0]).exists() for other in SERVICES if other != service
    )
    steps = uninstall_steps(service, others_stay, root, wanted.purge)
    apply(steps, root, wanted.dry_run, print)
    data = [path for path in (*service.data, CONFIG_DIR) if inside(root, path).exists()]
    if data and not wanted.dry_run:
        print(f"{service.program}: left in place: {', '.join(map(str, data))}")
