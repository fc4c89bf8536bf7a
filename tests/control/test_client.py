import socket
import threading
from pathlib import Path

import pytest

from spotlightd.control.client import ControlClient
from spotlightd.control.places import SYSTEM_SOCKET, find_socket
from spotlightd.errors import (
    NotAuthorisedError,
    TryAgainError,
    UnreachableError,
    UsageError,
    VersionSkewError,
)


def test_answers_arrive_as_types(served):
    client = served.client
    assert client.status().reward.held_out[0].scores == {"ocr": 0.51}
    assert client.agents()[0].versions == (3, 4)
    assert client.runs()[0].reward_first == 0.51
    assert client.create_token(60, 2, "h100").uses == 2
    assert [row.event_id for row in client.events(after=1)] == [2]
    assert client.stop().accepted == "stopping"
    assert served.daemon.calls == [("token", 60.0, 2, "h100"), ("stop",)]


def test_an_odd_agent_id_arrives_unchanged(served):
    served.client.drain("a/2 ü%", 7)
    assert served.daemon.calls == [("drain", "a/2 ü%", 7.0)]


def test_errors_keep_sentence_and_kind(served, failing):
    with pytest.raises(UsageError, match="no agent 'nobody'"):
        served.client.drain("nobody", 1)
    failing(TryAgainError("disk is full"))
    with pytest.raises(TryAgainError, match="disk is full"):
        served.client.status()
    failing(NotAuthorisedError("not you"))
    with pytest.raises(NotAuthorisedError, match="not you"):
        served.client.status()


def test_nobody_there_names_the_socket_and_the_cure(tmp_path):
    path = tmp_path / "none.sock"
    with pytest.raises(UnreachableError, match=f"{path}.*spotlightd run.*--socket"):
        ControlClient(path).status()


def test_a_stale_socket_is_unreachable(tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    with pytest.raises(UnreachableError, match="refused"):
        ControlClient(path).status()


def test_a_silent_daemon_is_unreachable(tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        with pytest.raises(UnreachableError, match="no answer in time"):
            ControlClient(path, timeout_s=0.2).status()


def one_answer(path: Path, raw: bytes) -> threading.Thread:
    """A server that gives every request this answer, once."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        with listener:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(raw)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


@pytest.mark.parametrize("body", [b"{}", b"<html>", b"\xff", b'{"name": 3}'])
def test_an_unknown_answer_is_version_skew(tmp_path, body):
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    thread = one_answer(tmp_path / "s", head.encode() + body)
    with pytest.raises(VersionSkewError, match="install the daemon's version"):
        ControlClient(tmp_path / "s").status()
    thread.join(10)


def test_something_else_than_http_is_unreachable(tmp_path):
    thread = one_answer(tmp_path / "s", b"SSH-2.0-OpenSSH\r\n")
    with pytest.raises(UnreachableError):
        ControlClient(tmp_path / "s").status()
    thread.join(10)


def test_which_socket(tmp_path):
    mine = tmp_path / "spotlight/control.sock"
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    assert find_socket(Path("given"), {"SPOTLIGHT_CONTROL_SOCKET": "env"}) == Path("given")
    assert find_socket(None, {"SPOTLIGHT_CONTROL_SOCKET": "env"}) == Path("env")
    assert find_socket(None, environ) == SYSTEM_SOCKET
    mine.parent.mkdir()
    mine.touch()
    assert find_socket(None, environ) == (SYSTEM_SOCKET if SYSTEM_SOCKET.exists() else mine)
