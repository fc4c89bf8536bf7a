"""What an installation consists of, and the order of it: decided here, done in `apply`.

Files come first, then the tools that read them: `systemd-sysusers` makes user and groups,
`systemd-tmpfiles` the folders and who owns the files in them, `systemctl` enables. Removal goes the
other way round, and leaves everything that an operator wrote or a run produced.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from spotlightd.install.units import Service, shared_files

CONFIG_DIR = PurePosixPath("/etc/spotlight")


@dataclass(frozen=True)
class Put:
    """A file with its whole content."""

    path: PurePosixPath
    content: bytes
    mode: int = 0o644
    keep: bool = False
    """What is there already belongs to the operator, and stays."""


@dataclass(frozen=True)
class Drop:
    """A file, or a folder with all that is in it, that goes."""

    path: PurePosixPath


@dataclass(frozen=True)
class Run:
    """A tool of systemd's. `needed`: whether its failure ends the installation."""

    argv: tuple[str, ...]
    needed: bool = True


Step = Put | Drop | Run


def install_steps(
    service: Service,
    command: Sequence[str],
    extra: Sequence[Put],
    root: Path | None,
    start: bool,
    owned: Sequence[PurePosixPath] = (),
) -> list[Step]:
    """Return what installs a service.

    Args:
        command: what the unit starts, with its arguments.
        extra: files of this service alone, such as its configuration.
        root: the system that it is installed into, where that is not this one.
        start: whether it also starts now; never with a root.
        owned: folders that become the service's user's, with all that is in them.
    """
    at = [f"--root={root}"] if root else []
    units = [Put(path, text.encode()) for path, text in service.unit_files(command).items()]
    shared = [Put(path, text.encode()) for path, text in shared_files().items()]
    # By name alone: the tools then look below their root, and in no other system.
    sysusers, tmpfiles = (path.name for path in shared_files())
    steps: list[Step] = [*shared, *units, *extra]
    steps.append(Run(("systemd-sysusers", *at, sysusers)))
    steps.append(Run(("systemd-tmpfiles", *at, "--create", tmpfiles)))
    steps += [Run(("chown", "--recursive", "spotlight:spotlight", str(path))) for path in owned]
    if root is None:
        steps.append(Run(("systemctl", "daemon-reload")))
    steps.append(Run(("systemctl", *at, "enable", "--quiet", *service.units)))
    if start and root is None:
        # In place of `start`: a service that runs already takes up what has changed.
        steps.append(Run(("systemctl", "restart", *service.units)))
    return steps


def uninstall_steps(
    service: Service, others_stay: bool, root: Path | None, purge: bool
) -> list[Step]:
    """Return what removes a service.

    Args:
        others_stay: another of our services is still installed: user, groups and folders stay.
        purge: its data goes too, and with the last service configuration, keys and user.
    """
    at = [f"--root={root}"] if root else []
    steps: list[Step] = []
    if root is None:
        # A unit that is half gone must not keep the rest from going.
        steps.append(Run(("systemctl", "disable", "--now", "--quiet", *service.units), False))
    else:
        steps.append(Run(("systemctl", *at, "disable", "--quiet", *service.units), False))
    steps += [Drop(path) for path in service.unit_files(["true"])]
    if not others_stay:
        steps += [Drop(path) for path in shared_files()]
    if purge:
        steps += [Drop(path) for path in service.data]
        if not others_stay:
            steps += [Drop(CONFIG_DIR)]
            userdel = ("userdel", *(["--root", str(root)] if root else []), "spotlight")
            steps.append(Run(userdel, False))
    if root is None:
        steps.append(Run(("systemctl", "daemon-reload")))
    return steps
