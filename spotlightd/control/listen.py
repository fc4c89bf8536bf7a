"""The listening Unix socket: handed over by systemd, or bound here.

A socket file outlives a killed process. It is removed only when the kernel says that nobody
listens on it (ECONNREFUSED), and only under a lock on its folder, so that two daemons that start
together cannot each remove the other's.
"""

import contextlib
import fcntl
import logging
import os
import socket
import stat
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from spotlightd.control.peer import group_id
from spotlightd.errors import InputError, TryAgainError

log = logging.getLogger(__name__)

_FIRST_INHERITED_FD = 3
_BACKLOG = 128


class Listener:
    """A listening socket and, where we bound it ourselves, the file to remove at the end."""

    def __init__(self, sock: socket.socket, path: Path | None) -> None:
        self.socket = sock
        self._path = path
        self._identity = _identity(path) if path else None

    def close(self) -> None:
        """Stop listening; remove the file unless somebody has put another in its place."""
        self.socket.close()
        if self._path and self._identity and _identity(self._path) == self._identity:
            self._path.unlink(missing_ok=True)
        self._path = None


def open_listener(path: Path, group: str, environ: MutableMapping[str, str]) -> Listener:
    """Take systemd's socket if there is one, else bind `path` with mode 0660 and `group`.

    Raises:
        TryAgainError: a daemon answers on `path`.
        InputError: `path` cannot be a socket (too long, folder missing, another kind of file).
    """
    inherited = inherited_socket(environ)
    if inherited is not None:
        return Listener(inherited, None)
    try:
        _make_folder(path.parent)
        with _locked(path.parent):
            _remove_stale(path)
            return Listener(_bind(path, group), path)
    except OSError as error:
        raise InputError(
            f"cannot listen on {path}: {error.strerror or error}; set control.socket to a path "
            f"of at most 107 bytes in a folder that this user may write"
        ) from None


def inherited_socket(environ: MutableMapping[str, str]) -> socket.socket | None:
    """Return the socket of systemd's socket activation, or None.

    The variables are consumed: children must not take the descriptor for theirs.

    Raises:
        InputError: something else than one listening Unix stream socket was handed over.
    """
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdigit() or count == "0":
        return None
    sock = socket.socket(fileno=_FIRST_INHERITED_FD)
    listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if count != "1" or sock.family != socket.AF_UNIX or not listening:
        sock.detach()
        raise InputError(
            f"LISTEN_FDS={count} with family {sock.family}: expected one listening Unix stream "
            f"socket; the socket unit must have one ListenStream= with a path"
        )
    os.set_inheritable(sock.fileno(), False)
    sock.setblocking(False)
    return sock


def _make_folder(folder: Path) -> None:
    # Others may look into it: the socket's own mode decides who may connect.
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TryAgainError(f"another process opens a socket in {folder}: try again") from None
        yield
    finally:
        os.close(fd)


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise InputError(f"{path} is not a socket and is left alone: move it, or set another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            log.info("removing the socket %s that a killed daemon left behind", path)
            path.unlink()
        except OSError as error:
            raise TryAgainError(
                f"cannot tell whether a daemon listens on {path} ({error.strerror or error}): "
                f"stop it, or remove the file"
            ) from None
        else:
            raise TryAgainError(
                f"a daemon already answers on {path}: stop it with `spotlightctl stop`, or set "
                f"another control.socket"
            )


def _bind(path: Path, group: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Closed to others from the first moment; opened to the group once it owns the file.
        before = os.umask(0o177)
        try:
            sock.bind(os.fspath(path))
        finally:
            os.umask(before)
        _give_to(path, group)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _give_to(path: Path, group: str) -> None:
    gid = group_id(group)
    if gid is not None:
        try:
            os.chown(path, -1, gid)
        except PermissionError:
            log.warning(
                "cannot give %s to group %s: only root and this user may use it", path, group
            )
            return
    path.chmod(0o660)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        info = path.lstat()
    except FileNotFoundError:
        return None
    return info.st_dev, info.st_ino
