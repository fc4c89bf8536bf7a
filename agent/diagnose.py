"""Why a daemon does not answer: nobody is there, something else is, or it holds another key.

A CURVE server that cannot open a client's first word closes the connection without a word, which
looks like a network's fault. Its greeting comes before any key, and tells it apart (ZMTP 3.1,
rfc.zeromq.org/spec/37: 64 bytes with signature, version and mechanism).
"""

import socket
from typing import Literal

Found = Literal["nobody", "other", "curve"]

_SIZE = 64
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
_PATIENCE_S = 3.0


def what_answers(host: str, port: int) -> Found:
    """Return who is at an address: `curve` is a ZeroMQ server that wants keys."""
    try:
        connection = socket.create_connection((host, port), _PATIENCE_S)
    except OSError:
        return "nobody"
    answer = b""
    with connection:
        try:
            connection.sendall(_GREETING)
            while len(answer) < _SIZE and (more := connection.recv(_SIZE - len(answer))):
                answer += more
        except OSError:
            return "other"
    is_zmtp = len(answer) == _SIZE and answer[0] == 0xFF and answer[9] & 1 == 1
    return "curve" if is_zmtp and answer[12:32].rstrip(b"\0") == b"CURVE" else "other"
