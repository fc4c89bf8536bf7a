import asyncio
import os
import socket
import time

import pytest

from spotlightd import notify


@pytest.fixture
def manager(tmp_path, monkeypatch):
    """A socket that stands for systemd's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield sock


def test_assignments_arrive_in_one_datagram(manager):
    assert notify.ready("iteration 3")
    assert manager.recv(1000) == b"READY=1\nSTATUS=iteration 3"
    assert notify.stopping("bye")
    assert manager.recv(1000) == b"STOPPING=1\nSTATUS=bye"


def test_abstract_addresses():
    name = f"spotlight-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{name}")
        assert notify.notify("READY=1", environ={"NOTIFY_SOCKET": f"@{name}"})
        assert sock.recv(100) == b"READY=1"


@pytest.mark.parametrize("address", ["", "relative", "/nobody/there", "@nobody-there"])
def test_nobody_listening_is_no_error(address):
    assert notify.notify("READY=1", environ={"NOTIFY_SOCKET": address}) is False


def test_watchdog_of_another_process_is_not_ours():
    assert notify.watchdog_s({}) is None
    assert notify.watchdog_s({"WATCHDOG_USEC": "soon"}) is None
    assert notify.watchdog_s({"WATCHDOG_USEC": "2000000"}) == 2.0
    theirs = {"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid() + 1)}
    assert notify.watchdog_s(theirs) is None


def test_watchdog_is_pinged_only_after_a_successful_check(manager, monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", "150000")
    checks = []

    async def check():
        checks.append(time.monotonic())
        if len(checks) == 3:
            raise OSError("the store is gone")

    with pytest.raises(OSError, match="store is gone"):
        asyncio.run(notify.keep_watchdog(check))
    manager.setblocking(False)
    heard = [manager.recv(100) for _ in range(3)]
    assert heard == [b"WATCHDOG_USEC=150000", b"WATCHDOG=1", b"WATCHDOG=1"]
    with pytest.raises(BlockingIOError):
        manager.recv(100)


def test_between_two_runs_nobody_is_missed(manager, monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")

    async def body():
        pinged = asyncio.Event()

        async def check():
            pinged.set()

        keeping = asyncio.create_task(notify.keep_watchdog(check))
        await pinged.wait()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    asyncio.run(body())
    manager.setblocking(False)
    heard = [manager.recv(100) for _ in range(3)]
    assert heard == [b"WATCHDOG_USEC=30000000", b"WATCHDOG=1", b"WATCHDOG_USEC=1800000000"]


def test_a_check_that_hangs_ends_the_pings(manager, monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", "50000")
    with pytest.raises(TimeoutError):
        asyncio.run(notify.keep_watchdog(asyncio.Event().wait))


def test_without_a_watchdog_it_returns(monkeypatch):
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    asyncio.run(notify.keep_watchdog(asyncio.Event().wait))
