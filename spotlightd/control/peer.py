"""Who is at the other end of the control socket, and what they may do.

The kernel tells: SO_PEERCRED gives the process, user and primary group at the time of `connect`,
SO_PEERGROUPS the supplementary groups. Nothing that the peer sends can change that.
"""

import grp
import os
import socket
import struct
from dataclasses import dataclass
from typing import Protocol

SO_PEERGROUPS = 59  # asm-generic/socket.h; Python has no name for it
_CREDENTIALS = struct.Struct("3i")
_MAX_GROUPS = 256  # Python reads at most 1024 bytes of an option


class PeerSocket(Protocol):
    """The part of a socket that is needed here (asyncio hands out a wrapper)."""

    def getsockopt(self, level: int, option: int, size: int) -> bytes: ...


@dataclass(frozen=True)
class Peer:
    pid: int
    uid: int
    groups: frozenset[int]


def peer_of(connection: PeerSocket) -> Peer:
    """Return the process that connected. Raises OSError when it is no Unix socket."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    return Peer(pid, uid, frozenset({gid, *_supplementary_groups(connection)}))


def _supplementary_groups(connection: PeerSocket) -> tuple[int, ...]:
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 4 * _MAX_GROUPS)
    except OSError:
        return ()  # more than fit: such a peer must have the group as its primary one
    return struct.unpack(f"{len(raw) // 4}I", raw)


def may_write(peer: Peer, group_id: int | None) -> bool:
    """Root, the daemon's own user and members of the operators' group may change things."""
    return peer.uid in (0, os.geteuid()) or (group_id is not None and group_id in peer.groups)


def group_id(name: str) -> int | None:
    """Return the id of a group, or None where there is no such group."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None
