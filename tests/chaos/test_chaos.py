"""The parts of `make chaos` that decide whether it could see anything."""

import asyncio
import contextlib

import pytest

from spotlightd.store.store import Store
from tests.chaos.audit import Audit, audit_store
from tests.chaos.disk import flip_a_byte, truncate_tail
from tests.chaos.observer import Observer
from tests.chaos.proxy import Proxy
from tests.chaos.schedule import FLEET, Plan, count_deaths, make_schedule
from tests.store.test_store import commit, request, result


def test_a_seed_repeats_its_schedule_and_has_everything_that_was_planned():
    plan = Plan()
    schedule = make_schedule(5, plan)
    assert schedule == make_schedule(5, plan)
    assert schedule != make_schedule(6, plan)
    assert [f.at_s for f in schedule] == sorted(f.at_s for f in schedule)
    counts = count_deaths(schedule)
    assert counts["kill_agents"] == plan.agent_deaths >= 60
    assert counts["kill_daemon"] + counts["truncate_wal"] == plan.daemon_kills >= 20
    assert counts["partition"] == plan.partitions >= 20
    assert max(f.count for f in schedule if f.kind == "kill_agents") == FLEET, "in bursts"
    assert schedule[-1].at_s <= plan.seconds <= 480, "ten minutes, with what follows"


@pytest.fixture
def store(tmp_path):
    opened = Store(tmp_path / "state")
    opened.begin_run("run", "{}").result()
    opened.save_cycle("{}", 0, [request("r1"), request("r2")]).result()
    commit(opened, result("r1", 7))
    yield opened
    opened.close()


def test_the_observer_sees_what_is_taken_back_or_changed(store):
    observer = Observer(store.state_dir / "spotlight.db")
    observer.look()
    assert observer.seen.keys() == {"r1"} and not observer.problems
    store._execute("UPDATE result SET scores = '{}'", ()).result()
    observer.look()
    assert observer.problems == ["r1 was committed and has changed"]
    store.reopen(["r1"]).result()
    observer.look()
    assert observer.problems[-1] == "r1 was committed and is gone"


def test_what_is_excused_must_come_back(store):
    observer = Observer(store.state_dir / "spotlight.db")
    observer.look()
    (stored,) = store.results()
    observer.excuse_holders_of(stored.trajectory)
    store.reopen(["r1"]).result()
    observer.look()
    assert not observer.problems
    observer.look_last()
    assert observer.problems == ["r1 never came back"]
    observer.problems.clear()
    commit(store, result("r1", 9))
    observer.look_last()
    assert not observer.problems


def test_the_audit_sees_a_result_that_is_lost(store):
    sound = Audit()
    audit_store(store, sound)
    assert not sound.problems and sound.figures["results"] == 1
    store._execute("DELETE FROM result", ()).result()
    lost = Audit()
    audit_store(store, lost)
    assert lost.problems == ["1 requests are done without a result"]


def test_a_damaged_file_is_damaged(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(bytes(100))
    flip_a_byte(file, 0.5)
    assert file.read_bytes() == bytes(50) + b"\xff" + bytes(49)
    assert truncate_tail(file, 0.0) == 1
    assert truncate_tail(file, 0.9) == 99


def test_a_network_is_open_silent_or_cut():
    async def run():
        echoed = asyncio.Event()

        async def echo(reader, writer):
            while data := await reader.read(100):
                writer.write(data)
                echoed.set()
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        proxy = Proxy("127.3.2.1", "127.0.0.1", (port,))
        await proxy.start()
        reader, writer = await asyncio.open_connection("127.3.2.1", port)
        writer.write(b"a")
        assert await reader.read(1) == b"a"
        proxy.set_mode("silent")
        echoed.clear()
        writer.write(b"b")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await echoed.wait()
        proxy.set_mode("open")
        assert await reader.read(1) == b"b"
        proxy.set_mode("cut")
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read(1) == b""
        writer.close()
        await proxy.close()
        server.close()

    asyncio.run(asyncio.wait_for(run(), 20))
