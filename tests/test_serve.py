"""A daemon that waits: on its real socket, with a run that takes no time in place of a real one."""

import asyncio
import contextlib
import os
import signal
import socket

import msgspec
import pytest

from spotlightd import home as homes
from spotlightd import serve
from spotlightd.config import load
from spotlightd.control.api import RunRequest
from spotlightd.control.client import ControlClient
from spotlightd.control.places import find_home, find_state
from spotlightd.errors import (
    ConfigError,
    ExitCode,
    InputError,
    SpotlightError,
    TryAgainError,
    UsageError,
)
from spotlightd.main import Ended
from spotlightd.store.reading import open_for_reading
from spotlightd.store.rows import PeerRow, TokenRow
from spotlightd.store.store import Store
from spotlightd.waiting import WaitingView


class Runs:
    """Stands in for `run_to_end`: writes a run's state, and ends as it is told."""

    def __init__(self) -> None:
        self.began = []
        self.ends = Ended(ExitCode.OK, True)
        self.error = None
        self.phase = "finished"
        self.ended = asyncio.Queue()

    async def __call__(self, config, origins, home):
        self.began.append((config.run.name, config.run.iterations, origins["run.name"]))
        store = Store(homes.Path(config.store.state_dir))
        encoded = msgspec.json.encode(config).decode()
        await asyncio.wrap_future(store.begin_run(config.run.name, encoded))
        cycle = f'{{"phase": "{self.phase}"}}'
        await asyncio.wrap_future(store.save_cycle(cycle, config.run.iterations, []))
        store.close()
        self.ended.put_nowait(config.run.name)
        if self.error is not None:
            raise self.error
        return self.ends


@pytest.fixture
def runs(monkeypatch):
    fake = Runs()
    monkeypatch.setattr(serve, "run_to_end", fake)
    return fake


class Served:
    """A waiting daemon in this process: blocking calls of its clients run in threads."""

    def __init__(self, folder, runs, **flags):
        self.runs = runs
        self.folder = folder / "home"
        self.own = {
            "store.state_dir": f'"{self.folder}"', "control.socket": f'"{folder}/c.sock"',
            "control.dashboard": "false",
        } | {key.replace("__", "."): value for key, value in flags.items()}  # fmt: skip
        self.client = ControlClient(folder / "c.sock")

    async def ask(self, method, *arguments):
        return await asyncio.to_thread(getattr(self.client, method), *arguments)

    async def submit(self, **flags):
        """Submit a run and see it end."""
        sets = {key.replace("__", "."): value for key, value in flags.items()}
        answer = await self.ask("submit", RunRequest(set=sets))
        await asyncio.wait_for(self.runs.ended.get(), 20)
        return answer

    async def start(self):
        task = asyncio.create_task(serve._serve(*load(None, self.own, {})))
        # It listens from its first turn on.
        await asyncio.sleep(0)
        return task

    @contextlib.asynccontextmanager
    async def up(self):
        task = await self.start()
        try:
            yield task
            os.kill(os.getpid(), signal.SIGTERM)
            assert await asyncio.wait_for(task, 20) == ExitCode.OK
        finally:
            task.cancel()


def test_it_waits_takes_a_run_and_waits_again(tmp_path, runs):
    async def body():
        served = Served(tmp_path, runs)
        async with served.up():
            status = await served.ask("status")
            assert (status.run_state, status.run) == ("waiting", "")
            for method, arguments in (
                ("create_token", (60, 1, "default")), ("set_run", ("pause",)), ("weights", ()),
            ):  # fmt: skip
                with pytest.raises(TryAgainError, match="runs submit CONFIG begins one"):
                    await served.ask(method, *arguments)
            answer = await served.submit(run__name="first", run__iterations="3")
            assert (answer.run, answer.iteration) == ("first", 0)
            assert answer.state_dir == str(served.folder / "runs/first")
            # No connection is refused while the run is built and taken apart.
            status = await served.ask("status")
            assert (status.run_state, status.run, status.iterations) == ("waiting", "first", 3)
            (row,) = await served.ask("runs")
            assert (row.name, row.state, row.iteration) == ("first", "done", 3)
            with pytest.raises(UsageError, match=r"'first' is done \(3 iterations\)"):
                await served.submit(run__name="first", run__iterations="3")
            more = await served.submit(run__name="first", run__iterations="4")
            assert more.iteration == 3
            await served.submit(run__name="second", run__iterations="1")
            names = [row.name for row in await served.ask("runs")]
            assert names == ["second", "first"]
        assert [began[:2] for began in runs.began] == [("first", 3), ("first", 4), ("second", 1)]
        assert not (served.folder / "submitted.json").exists()
        assert not served.client.socket.exists()

    asyncio.run(body())


def test_a_bad_configuration_is_refused_and_nothing_begins(tmp_path, runs):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text('a sign that reads "A"\na sign without a word\n')

    async def body():
        served = Served(tmp_path, runs)
        async with served.up():
            for flags, says in (
                ({"run__iterationz": "3"}, "unknown key 'run.iterationz'"),
                ({"run__model": '"/no/model"'}, "no model at '/no/model'"),
                ({"run__model": '"' + "a" * 300 + '"'}, "is the relative path"),
                ({"run__model": '"/' + "a" * 300 + '"'}, "no model at"),
                ({"run__prompts": f'"{prompts}"'}, "line 2: no text between straight"),
                ({"run__prompts": '"/x\\u0000"'}, "cannot read the prompts"),
                ({"rewards__train": '"orc"'}, "did you mean 'ocr'"),
            ):
                with pytest.raises(InputError, match=says):
                    await served.submit(**flags)
            assert (await served.ask("status")).run_state == "waiting"
            assert await served.ask("runs") == []
        assert runs.began == []

    asyncio.run(body())


def test_what_was_submitted_begins_again_with_the_next_daemon(tmp_path, runs):
    async def body():
        served = Served(tmp_path, runs)
        runs.ends, runs.phase = Ended(ExitCode.TRY_AGAIN, False), "rollout"
        async with contextlib.AsyncExitStack() as stack:
            task = await stack.enter_async_context(served.up())
            await served.submit(run__name="first", run__iterations="3")
            assert await asyncio.wait_for(task, 20) == ExitCode.TRY_AGAIN
            runs.error = OSError("a bug")
            with pytest.raises(OSError, match="a bug"):
                await serve._serve(*load(None, served.own, {}))
            runs.ends, runs.error, runs.phase = Ended(ExitCode.OK, True), None, "finished"
            task = await served.start()
            assert (await served.ask("runs"))[0].state == "done"
            assert [name for name, *_ in runs.began] == ["first"] * 3
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(task, 20)
            stack.pop_all()

    asyncio.run(body())


@pytest.mark.parametrize("by", ["error", "trainer"])
def test_a_run_that_no_start_mends_is_given_up_and_the_daemon_stays(tmp_path, runs, by):
    async def body():
        served = Served(tmp_path, runs)
        runs.phase = "rollout"
        if by == "error":
            runs.error = ConfigError("it is\nwrong")
        else:
            runs.ends = Ended(ExitCode.INPUT, False)
        async with served.up():
            await served.submit(run__name="bad")
            (row,) = await served.ask("runs")
            assert row.state == "failed"
            assert ("wrong" if by == "error" else "exit code 78") in row.failure
            assert (await served.ask("status")).run_state == "waiting"
            runs.error, runs.ends, runs.phase = None, Ended(ExitCode.OK, True), "finished"
            await served.submit(run__name="bad", run__iterations="40")
            (row,) = await served.ask("runs")
            assert (row.state, row.failure) == ("done", "")

    asyncio.run(body())


def test_an_operators_stop_outlives_a_kill_before_the_runs_end(tmp_path, runs):
    async def body():
        served = Served(tmp_path, runs)
        own = load(None, served.own, {})
        home = homes.Home(*own)
        wanted = RunRequest(set={"run.name": "first"})
        config, _ = home.composed(wanted)
        state_dir = homes.Path(config.store.state_dir)
        home.submit(wanted, state_dir)
        store = Store(state_dir)
        store.begin_run("first", msgspec.json.encode(config).decode()).result()
        store.set_run_state("stopped").result()
        store.close()
        home.close()
        async with served.up():
            (row,) = await served.ask("runs")
            assert row.state == "stopped" and runs.began == []
            # Submitted once more it goes on.
            await served.submit(run__name="first")
        assert len(runs.began) == 1

    asyncio.run(body())


def test_a_run_that_the_daemon_states_itself_begins_once(tmp_path, runs):
    async def body():
        for start in range(2):
            served = Served(tmp_path, runs, run__iterations=str(2))
            async with served.up():
                (row,) = await served.ask("runs")
                assert (row.name, row.state) == ("run", "done")
                assert len(runs.began) == 1, start
        async with Served(tmp_path, runs, run__iterations="5").up():
            await served.ask("status")
        assert [iterations for _, iterations, _ in runs.began] == [2, 5]

    asyncio.run(body())


def test_one_daemon_a_folder_and_its_file_must_be_its_own(tmp_path, runs):
    own = load(None, Served(tmp_path, runs).own, {})
    home = homes.Home(*own)
    with pytest.raises(TryAgainError, match="already uses the state directory"):
        homes.Home(*own)
    (home.folder / "submitted.json").write_text("{}")
    with pytest.raises(InputError, match="remove it, and submit the run again"):
        home.submitted()
    home.close()


def test_of_two_at_once_one_is_taken(tmp_path, runs):
    async def body():
        home = homes.Home(*load(None, Served(tmp_path, runs).own, {}))
        view = WaitingView(home, None)
        wanted = [RunRequest(set={"run.name": name}) for name in ("one", "two")]
        answers = await asyncio.gather(*map(view.submit, wanted), return_exceptions=True)
        assert answers[0].run == "one" and isinstance(answers[1], TryAgainError)
        assert home.submitted().wanted.set == {"run.name": "one"}
        home.close()

    asyncio.run(body())


def test_an_unreadable_run_is_listed_and_hides_none(tmp_path, runs):
    async def body():
        served = Served(tmp_path, runs)
        broken = served.folder / "runs/broken"
        broken.mkdir(parents=True)
        (broken / "spotlight.db").write_bytes(b"no database at all" * 100)
        async with served.up():
            await served.submit(run__name="good", run__iterations="1")
            rows = {row.name: row for row in await served.ask("runs")}
            assert rows["good"].state == "done" and rows["broken"].state == "unreadable"
            assert "no run can be read" in rows["broken"].failure
            with pytest.raises(SpotlightError, match="no run can be read"):
                await served.submit(run__name="broken")

    asyncio.run(body())


def test_who_connects_in_between_waits_and_is_answered(tmp_path, runs, monkeypatch):
    async def body():
        served = Served(tmp_path, runs)
        gate, began = asyncio.Event(), asyncio.Event()

        async def slow(config, origins, home):
            began.set()
            await gate.wait()
            return await runs(config, origins, home)

        monkeypatch.setattr(serve, "run_to_end", slow)
        async with served.up():
            await served.ask("submit", RunRequest(set={"run.iterations": "1"}))
            await began.wait()
            with socket.socket(socket.AF_UNIX) as early:
                await asyncio.to_thread(early.connect, str(served.client.socket))
                early.sendall(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
                gate.set()
                early.settimeout(20)
                answer = await asyncio.to_thread(early.recv, 20)
                assert answer.startswith(b"HTTP/1.1 200")

    asyncio.run(body())


def test_whom_one_run_let_in_the_next_one_knows_and_whom_it_shut_out(tmp_path):
    ann, bob, eve = (PeerRow(f"key of {name}", name, name, False) for name in ("ann", "bob", "eve"))
    token = TokenRow(b"k", 3, 2e9, "spot")
    before, after = (Store(tmp_path / name) for name in ("before", "after"))
    for store, peers in ((before, (ann, bob)), (after, (bob, eve))):
        store.begin_run("run", "{}").result()
        store.admission.add_token("t", token).result()
        for peer in peers:
            assert store.admission.enrol("t", peer).result()
    before.admission.revoke(bob.public_key).result()
    before.admission.set_prices("spot", {"a": 2.0, "b": 3.0}).result()
    after.admission.set_prices("spot", {"a": 1.0}).result()
    after.admission.enrol("t", eve).result()
    earlier = open_for_reading(tmp_path / "before")
    for _ in range(2):
        after.admission.carry_over(earlier).result()
        assert {row.agent_id: row.revoked for row in after.admission.peers()} == {
            "ann": False, "bob": True, "eve": False,
        }  # fmt: skip
        assert after.admission.token("t").uses_left == 0, "the fewest that either knows"
        assert after.admission.prices() == {("spot", "a"): 1.0, ("spot", "b"): 3.0}
    earlier.close()
    before.close()
    after.close()


def test_the_newest_runs_state_is_found_and_the_daemons_folder(tmp_path):
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    home = tmp_path / "spotlight"
    assert find_state(environ) == find_home(environ) == homes.Path("/var/lib/spotlight")
    for age, name in enumerate(("new", "old")):
        (home / "runs" / name).mkdir(parents=True)
        (home / "runs" / name / "spotlight.db").touch()
        os.utime(home / "runs" / name / "spotlight.db", (1e9, 2e9 - age))
    (home / "daemon.lock").touch()
    assert (find_home(environ), find_state(environ)) == (home, home / "runs/new")
    (home / "spotlight.db").touch()
    assert find_state(environ) == home, "of `spotlightd run`"
