"""Messages between a process and its child, and how each notices the other's end."""

import os
import signal
import socket
import subprocess
import sys

import psutil
import pytest

from spotlightd.childproc import Channel
from spotlightd.wire import pipe
from spotlightd.wire.codec import WireError
from spotlightd.wire.messages import FrameSpec
from spotlightd.wire.worker import Exit, Finished


@pytest.fixture
def ends():
    first, second = socket.socketpair()
    yield (
        Channel(first, receives=pipe.TO_WORKER, sends=pipe.FROM_WORKER),
        Channel(second, receives=pipe.FROM_WORKER, sends=pipe.TO_WORKER),
        second,
    )
    first.close()
    second.close()


def test_frames_arrive_whole(ends):
    child, parent, _ = ends
    data = os.urandom(100_000)
    message = Finished("r", 1, 0.5, 0, (FrameSpec("image", len(data)), FrameSpec("trajectory", 0)))
    child.send(message, [data, b""])
    received, frames = parent.receive(5)
    assert received == message
    assert [bytes(frame) for frame in frames] == [data, b""]


def test_nothing_within_the_timeout_is_none(ends):
    child, _, _ = ends
    assert child.receive(0) is None


def test_the_other_end_closing_is_eof(ends):
    child, parent, _ = ends
    parent.close()
    with pytest.raises(EOFError):
        child.receive(5)
    with pytest.raises(EOFError):
        child.send(Finished("r", 1, 0.5, 0, ()))
        child.send(Finished("r", 1, 0.5, 0, ()))


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        b"\x01\0\0\0" + b"\xff" * 8,
        b"\x01\0\0\0\x01" + b"\0" * 7 + b"x",
    ],
)
def test_garbage_is_a_wire_error_before_anything_is_allocated(ends, data):
    child, _, raw = ends
    raw.sendall(data)
    with pytest.raises(WireError):
        child.receive(5)


def test_frames_that_were_not_announced_are_refused(ends):
    child, _, _ = ends
    with pytest.raises(ValueError, match="announces"):
        child.send(Exit(), [b"more"])


PARENT = """
from spotlightd.childproc import spawn
process, sock = spawn("spotlightd.rewards.scorer")
print(process.pid, flush=True)
input()
"""


@pytest.mark.fault
def test_a_child_does_not_outlive_a_killed_parent():
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    child = psutil.Process(int(parent.stdout.readline()))
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    gone, alive = psutil.wait_procs([child], timeout=10)
    assert gone and not alive


def test_a_trainer_whose_daemon_is_gone_ends_before_it_loads_anything():
    """The kernel tells of a parent's death only from then on that it is asked to."""
    another = str(os.getpid() + 1)
    command = [sys.executable, "-X", "importtime", "-m", "spotlightd.trainer", "none", another]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "the process that started this one is gone" in ended.stderr
    assert "| torch" not in ended.stderr
