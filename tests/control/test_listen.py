import os
import socket
import subprocess
import sys

import pytest

from spotlightd.control.listen import inherited_socket, open_listener
from spotlightd.errors import InputError, TryAgainError

NO_GROUP = "no-such-group"


def leave_stale(path):
    """A socket file whose process was killed: bound, listening, then gone without unlink."""
    script = (
        "import os, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()\n"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], timeout=20)
    assert path.exists()


def test_a_stale_socket_is_replaced(tmp_path):
    path = tmp_path / "s"
    leave_stale(path)
    listener = open_listener(path, NO_GROUP, {})
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(path))
    listener.close()
    assert not path.exists()


def test_a_living_socket_is_kept(tmp_path):
    path = tmp_path / "s"
    first = open_listener(path, NO_GROUP, {})
    with pytest.raises(TryAgainError, match="already answers"):
        open_listener(path, NO_GROUP, {})
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(path))
    first.close()


def test_a_full_backlog_is_not_taken_for_dead(tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(path))
        busy.listen(0)
        probes = []
        with pytest.raises(BlockingIOError):
            while True:
                probe = socket.socket(socket.AF_UNIX)
                probes.append(probe)
                probe.setblocking(False)
                probe.connect(str(path))
        with pytest.raises(TryAgainError, match="cannot tell"):
            open_listener(path, NO_GROUP, {})
        for probe in probes:
            probe.close()
    assert path.exists()


def test_another_file_is_left_alone(tmp_path):
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(InputError, match="not a socket"):
        open_listener(path, NO_GROUP, {})
    assert path.read_text() == "precious"


def test_a_path_that_is_too_long_gets_a_sentence(tmp_path):
    with pytest.raises(InputError, match="107 bytes"):
        open_listener(tmp_path / ("x" * 120), NO_GROUP, {})


def test_closing_does_not_remove_a_successors_socket(tmp_path):
    path = tmp_path / "s"
    first = open_listener(path, NO_GROUP, {})
    path.unlink()
    second = open_listener(path, NO_GROUP, {})
    first.close()
    assert path.exists()
    second.close()


def test_umask_is_restored(tmp_path):
    before = os.umask(0o022)
    try:
        open_listener(tmp_path / "s", NO_GROUP, {}).close()
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


def test_variables_meant_for_another_process_are_ignored_and_removed():
    environ = {"LISTEN_PID": str(os.getpid() + 1), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "x"}
    assert inherited_socket(environ) is None
    assert environ == {}


ACTIVATED = """
import os, socket, sys
from pathlib import Path
kind, count = sys.argv[2:]
if kind == "unix":
    s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()
else:
    s = socket.socket(socket.AF_INET); s.bind(("127.0.0.1", 0)); s.listen()
os.dup2(s.fileno(), 3)
from spotlightd.control.listen import open_listener
environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": count}
listener = open_listener(Path("/nowhere/else"), "no-such-group", environ)
assert listener.socket.getsockname() == sys.argv[1] and not os.get_inheritable(3) and not environ
listener.close()
assert os.path.exists(sys.argv[1]), "the file belongs to systemd"
"""


def activated(path, kind, count):
    command = [sys.executable, "-c", ACTIVATED, str(path), kind, count]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


def test_systemds_socket_is_taken_and_its_file_left(tmp_path):
    result = activated(tmp_path / "s", "unix", "1")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(("kind", "count"), [("inet", "1"), ("unix", "2")])
def test_a_wrong_activation_gets_a_sentence(tmp_path, kind, count):
    result = activated(tmp_path / "s", kind, count)
    assert "InputError" in result.stderr and "ListenStream" in result.stderr
