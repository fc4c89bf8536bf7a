"""The store: fences, idempotence, durability, and what a full disk does."""

import errno
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from spotlightd.errors import InputError, TryAgainError, VersionSkewError
from spotlightd.store.rows import PeerRow, TokenRow
from spotlightd.store.store import Store
from spotlightd.wire.messages import Result
from spotlightd.wire.sampling import Request, SamplerSettings

SAMPLER = SamplerSettings((1.0, 0.0), "flow_sde", 0.7, (), 1.0, 32, 128)


def request(name: str, iteration: int = 0, kind="rollout") -> Request:
    return Request(name, kind, iteration, "p", 'a "A"', "A", 2**63 - 1, 0, SAMPLER)


def result(name: str, fence: int, score: float = 0.5, resumed_from: int = 0) -> Result:
    return Result(name, fence, {"ocr": score}, "A", 1.5, resumed_from)


@pytest.fixture
def store(tmp_path):
    opened = Store(tmp_path / "state")
    opened.begin_run("run", "{}").result()
    opened.save_cycle("{}", 0, [request("r1"), request("r2")]).result()
    yield opened
    opened.close()


def commit(store, message, trajectory=b"t", image=b"i", agent="a"):
    return store.commit_result(message, trajectory, image, agent).result()[0]


def test_a_result_commits_once_and_a_repetition_is_told_the_same(store):
    store.set_leases([("r1", 7, "a")]).result()
    assert commit(store, result("r1", 7)) == "committed"
    assert commit(store, result("r1", 7, score=0.9)) == "committed"
    (stored,) = store.results()
    assert stored.scores == {"ocr": 0.5}
    assert store.blobs.get(stored.trajectory) == b"t"
    assert store.request_counts() == {"rollout": {"done": 1, "queued": 1}}


def test_a_superseded_fence_is_stale(store):
    store.set_leases([("r1", 7, "a")]).result()
    store.set_leases([("r1", 9, "b")]).result()
    assert commit(store, result("r1", 7)) == "stale"
    assert store.commit_progress("r1", 7, 3, b"s", 1.0).result()[0] == "stale"
    assert commit(store, result("r1", 9), agent="b") == "committed"


def test_fences_only_rise(store):
    store.set_leases([("r1", 9, "b")]).result()
    store.set_leases([("r1", 7, "a")]).result()
    assert store.requests([0])[0].fence == 9


def test_an_expired_lease_that_was_not_handed_on_may_commit(store):
    store.set_leases([("r1", 7, "a")]).result()
    store.requeue(["r1"]).result()
    assert commit(store, result("r1", 7)) == "committed"


def test_settled_requests_take_no_result(store):
    store.set_leases([("r1", 7, "a")]).result()
    store.settle(["r1"], "cancelled").result()
    assert commit(store, result("r1", 7)) == "stale"


def test_progress_goes_forward_only_and_comes_back_after_a_restart(store):
    store.set_leases([("r1", 7, "a")]).result()
    assert store.commit_progress("r1", 7, 4, b"four", 1.0).result()[0] == "committed"
    assert store.commit_progress("r1", 7, 2, b"two", 1.0).result()[0] == "stale"
    row = store.requests([0])[0]
    assert (row.progress_step, store.blobs.get(row.progress_blob)) == (4, b"four")
    store.requeue(["r1"], drop_progress=True).result()
    assert store.requests([0])[0].progress_blob is None


def test_everything_is_there_again_after_reopening(tmp_path, store):
    store.set_leases([("r1", 7, "a")]).result()
    commit(store, result("r1", 7, resumed_from=4))
    store.add_metrics(3, {"x": 1.5}).result()
    store.add_event("info", "fleet", "joined").result()
    store.save_sigmas((1.0, 0.0)).result()
    store.save_accounts({"a": "{}"}).result()
    store.close()
    again = Store(tmp_path / "state")
    try:
        assert again.run().epoch == 1
        again.begin_run("other", "{}").result()
        assert (again.run().name, again.run().epoch, again.run().sigmas) == ("run", 2, (1.0, 0.0))
        assert [r.request for r in again.requests([0])] == [request("r1"), request("r2")]
        assert again.results(["r1"])[0].resumed_from == 4
        assert again.metrics() == {3: {"x": 1.5}}
        assert again.events(0, 10)[0][2:] == ("info", "fleet", "joined")
        assert again.accounts() == {"a": "{}"}
        assert again.count_lost() == 0
    finally:
        again.close()
    store.__init__(tmp_path / "state")  # for the fixture's close


def test_a_token_is_used_up(store):
    store.admission.add_token("t", TokenRow(b"k" * 32, 1, time.time() + 60, "pool")).result()
    assert store.admission.enrol("t", PeerRow("key1", "agent-1", "vm", False)).result()
    assert not store.admission.enrol("t", PeerRow("key2", "agent-2", "vm", False)).result()
    assert [peer.public_key for peer in store.admission.peers()] == ["key1"]
    assert store.admission.token("t").uses_left == 0


def test_a_second_daemon_on_the_same_folder_is_refused(store):
    with pytest.raises(TryAgainError, match=rf"another spotlightd \(pid {os.getpid()}\)"):
        Store(store.state_dir)


def test_a_newer_schema_is_not_touched(tmp_path):
    (tmp_path / "state").mkdir()
    connection = sqlite3.connect(tmp_path / "state/spotlight.db")
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    with pytest.raises(VersionSkewError, match="written by a newer spotlightd"):
        Store(tmp_path / "state")


def test_a_damaged_database_is_named(tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state/spotlight.db").write_bytes(b"not a database" * 100)
    with pytest.raises(InputError, match="is damaged"):
        Store(tmp_path / "state")


def test_a_full_disk_fails_the_commit_and_keeps_what_was_acknowledged(store, monkeypatch):
    store.set_leases([("r1", 7, "a"), ("r2", 8, "a")]).result()
    assert commit(store, result("r1", 7)) == "committed"

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(TryAgainError, match=r"disk full while writing .*nothing acknowledged"):
        commit(store, result("r2", 8), trajectory=b"other")
    monkeypatch.undo()
    assert [r.request_id for r in store.results()] == ["r1"]
    assert commit(store, result("r2", 8), trajectory=b"other") == "committed"
    assert not list(store.state_dir.rglob(".writing-*"))


def test_a_damaged_blob_is_noticed(store):
    (digest,) = store.blobs.put_many([b"content"])
    store.blobs.path(digest).write_bytes(b"Content")
    with pytest.raises(InputError, match="no longer has its digest"):
        store.blobs.get(digest)


def test_a_damaged_result_is_reopened_and_its_blob_written_anew(store):
    store.set_leases([("r1", 7, "a")]).result()
    commit(store, result("r1", 7))
    (stored,) = store.results()
    path = store.blobs.path(stored.trajectory)
    path.write_bytes(b"x")
    store.reopen(["r1", "r2"]).result()
    assert store.results() == []
    assert store.request_counts() == {"rollout": {"queued": 2}}
    assert commit(store, result("r1", 9)) == "committed"
    assert path.read_bytes() == b"t"
    assert store.count_lost() == 0


def test_a_damaged_step_commit_is_forgotten_and_an_earlier_step_may_follow(store):
    store.set_leases([("r1", 7, "a")]).result()
    _, digest = store.commit_progress("r1", 7, 5, b"s", 1.0).result()
    store.blobs.path(digest).write_bytes(b"x")
    store.forget_progress("r1", "another").result()
    assert store.requests([0])[0].progress_step == 5
    store.forget_progress("r1", digest).result()
    assert store.requests([0])[0].progress_step == 0
    assert store.commit_progress("r1", 7, 2, b"s", 1.0).result()[0] == "committed"
    assert store.blobs.get(digest) == b"s"


def test_forgetting_keeps_evaluations_images_and_open_states(store):
    store.save_cycle("{}", 0, [request("e", 0, "evaluate"), request("new", 5)]).result()
    store.set_leases([(r, i, "a") for i, r in enumerate(["r1", "e", "r2", "new"], 10)]).result()
    commit(store, result("r1", 10), b"trajectory", b"picture")
    commit(store, result("e", 11), None, b"evaluation")
    store.commit_progress("r2", 12, 3, b"state", 0.0).result()
    store.forget_before(iteration=1, images_before=1).result()
    kept = {path.read_bytes() for path in (store.state_dir / "blobs").rglob("*") if path.is_file()}
    assert kept == {b"evaluation", b"state"}


WRITER = """
import sys
from pathlib import Path
from spotlightd.store.store import Store
from tests.store.test_store import request, result
store = Store(Path(sys.argv[1]))
store.begin_run("run", "{}").result()
number = int(sys.argv[2])
while True:
    name = f"r{number}"
    store.save_cycle("{}", 0, [request(name)]).result()
    store.set_leases([(name, number + 1, "a")]).result()
    commit = store.commit_result(result(name, number + 1), b"t%d" % number, None, "a")
    assert commit.result()[0] == "committed"
    print(number, flush=True)
    number += 1
"""


@pytest.mark.fault
def test_what_was_acknowledged_survives_kill_9(tmp_path):
    """A process that commits in a loop is killed again and again, at no particular moment."""
    acknowledged: list[int] = []
    for _ in range(4):
        start = str(acknowledged[-1] + 2 if acknowledged else 0)
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "state"), start],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(25):
            acknowledged.append(int(process.stdout.readline()))
        process.send_signal(signal.SIGKILL)
        acknowledged += [int(line) for line in process.stdout.read().splitlines()]
        process.wait()
        process.stdout.close()
    store = Store(tmp_path / "state")
    try:
        found = {int(r.request_id[1:]): r for r in store.results()}
        assert set(acknowledged) <= set(found)
        assert store.count_lost() == 0
        for number in acknowledged:
            assert store.blobs.get(found[number].trajectory) == b"t%d" % number
    finally:
        store.close()
