"""Child processes on a socket pair: how they start, talk and end.

The child inherits one end as a file descriptor whose number is its first argument. When either
process dies the other reads the end of the stream; on Linux the kernel also kills a child whose
parent died, so that one deep in a computation does not outlive it.
"""

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from spotlightd.wire import pipe
from spotlightd.wire.codec import Buffer, TypedCodec
from spotlightd.wire.messages import Message

PR_SET_PDEATHSIG = 1


class Channel:
    """Blocking messages over a stream socket; decoding errors are WireError."""

    def __init__(self, sock: socket.socket, receives: TypedCodec, sends: TypedCodec) -> None:
        self._sock = sock
        self._receives = receives
        self._sends = sends

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    def send(self, message: Message, frames: Sequence[Buffer] = ()) -> None:
        """Raises EOFError when the other process is gone."""
        parts = self._sends.encode(message, frames)
        try:
            self._sock.sendall(pipe.pack_sizes(parts))
            for part in parts:
                self._sock.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            raise EOFError("the process at the other end is gone") from None

    def receive(self, timeout: float | None = None) -> tuple[Any, list[Buffer]] | None:
        """Return the next message and its frames; None when none begins within `timeout` seconds.

        Raises:
            EOFError: the other process is gone.
            WireError: what arrived is no message.
        """
        readable, _, _ = select.select([self._sock], [], [], timeout)
        if not readable:
            return None
        count = pipe.unpack_count(self._exactly(pipe.COUNT.size))
        sizes = pipe.unpack_sizes(self._exactly(8 * count), count)
        return self._receives.decode([self._exactly(size) for size in sizes])

    def _exactly(self, size: int) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            try:
                got = self._sock.recv_into(view)
            except ConnectionResetError:
                got = 0
            if got == 0:
                raise EOFError("the process at the other end is gone")
            view = view[got:]
        return bytes(data)


def spawn(
    module: str, args: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start `python -m module FD args...`; return the process and our end of the pair."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(theirs.fileno()), *args],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
        )
    return process, ours


def enter_child(argv: Sequence[str]) -> socket.socket:
    """Prepare a child process and return its end of the pair.

    Ctrl-C reaches the whole foreground group: what it means for a child its parent decides.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    return socket.socket(fileno=int(argv[1]))


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; elsewhere no effect).

    Args:
        parent: process id of who started this one; where it is gone already, this one ends now.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        sys.exit("the process that started this one is gone")
