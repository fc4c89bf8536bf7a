import http.client
import json
import os
import socket
import stat
import threading
import time

import pytest

from spotlightd.control import api
from spotlightd.control.peer import Peer, may_write, peer_of
from spotlightd.errors import InputError, TryAgainError, UsageError


class Raw(http.client.HTTPConnection):
    """HTTP without our client, as curl speaks it."""

    def __init__(self, path):
        super().__init__("localhost", timeout=10)
        self._path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self._path)


def ask(served, method, path, body=None):
    connection = Raw(served.path)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), dict(answer.getheaders())
    finally:
        connection.close()


def test_reads_are_json(served):
    assert ask(served, "GET", "/healthz")[:2] == (200, {"ok": True})
    status, body, headers = ask(served, "GET", "/v1/status")
    assert status == 200 and headers["Content-Type"].startswith("application/json")
    assert body["run"] == "words" and body["requests"]["explore"] == {"queued": 100, "leased": 12}
    assert [row["agent_id"] for row in ask(served, "GET", "/v1/agents")[1]] == ["a-1", "a/2 ü%"]
    assert ask(served, "GET", "/v1/runs")[1][0]["reward_last"] is None


def test_token_defaults_and_bounds(served):
    assert ask(served, "POST", "/v1/tokens")[0] == 201
    assert ask(served, "POST", "/v1/tokens", '{"ttl_s": 60, "uses": 3, "pool": "h100"}')[0] == 201
    assert served.daemon.calls == [("token", 900.0, 1, "default"), ("token", 60.0, 3, "h100")]


@pytest.mark.parametrize(
    "body",
    [
        "{",
        "[]",
        "null",
        '"x"',
        b"\xff\xfe",
        "[" * 60000,
        '{"ttl_s": "long"}',
        '{"ttl_s": 0}',
        '{"ttl_s": 1e999}',
        '{"uses": 0}',
        '{"uses": 1.5}',
        '{"use": 3}',
        '{"pool": ""}',
        '{"pool": "\\ud800"}',
    ],
)
def test_bad_body_is_a_sentence_and_does_nothing(served, body):
    status, answer, _ = ask(served, "POST", "/v1/tokens", body)
    assert status == 400 and "ttl_s, uses, pool" in answer["error"]
    assert served.daemon.calls == []


def test_large_body_is_refused(served):
    status, answer, _ = ask(served, "POST", "/v1/tokens", " " * 70000)
    assert status == 413 and "error" in answer


@pytest.mark.parametrize(
    "query", ["after=x", "after=-1", "wait=61", "wait=nan", "limit=0", "limit=1001"]
)
def test_bad_query_is_a_sentence(served, query):
    status, answer, _ = ask(served, "GET", f"/v1/events?{query}")
    assert status == 400 and query in answer["error"]


def test_unknown_paths_and_methods(served):
    assert ask(served, "GET", "/v2/status")[0] == 404
    status, answer, headers = ask(served, "DELETE", "/v1/status")
    assert status == 405 and headers["Allow"] == "GET,HEAD" and "error" in answer


def test_drain_needs_a_known_agent(served):
    status, answer, _ = ask(served, "POST", "/v1/agents/a-9/drain")
    assert status == 404 and "a-1" in answer["error"]
    assert ask(served, "POST", "/v1/agents/a-1/drain", '{"deadline_s": 5}')[0] == 202
    assert served.daemon.calls == [("drain", "a-1", 5.0)]


@pytest.mark.parametrize(
    ("error", "status"),
    [(UsageError("wrong"), 400), (TryAgainError("later"), 409), (InputError("bad file"), 500)],
)
def test_the_daemons_own_errors_keep_their_sentence(served, failing, error, status):
    failing(error)
    assert ask(served, "GET", "/v1/status")[:2] == (status, {"error": str(error)})


def test_a_bug_is_logged_and_hides_its_details(served, failing, caplog):
    failing(RuntimeError("secret detail"))
    status, answer, _ = ask(served, "GET", "/v1/status")
    assert status == 500 and "secret" not in answer["error"]
    assert "secret detail" in caplog.text


def test_events_page_and_wait(served):
    assert [row["event_id"] for row in ask(served, "GET", "/v1/events?limit=1")[1]] == [1]
    assert [row["event_id"] for row in ask(served, "GET", "/v1/events?after=1")[1]] == [2]
    assert ask(served, "GET", "/v1/events?after=2&wait=0.05")[1] == []
    answers = []
    waiter = threading.Thread(
        target=lambda: answers.extend(served.client.events(after=2, wait_s=20))
    )
    served.daemon.waiting.clear()
    waiter.start()
    assert served.daemon.waiting.wait(10)
    served.add_event(api.EventRow(event_id=3, time=0, level="info", component="x", text="new"))
    waiter.join(10)
    assert [row.event_id for row in answers] == [3]


def test_closing_answers_a_waiting_client_and_removes_the_socket(served):
    answers = []
    waiter = threading.Thread(target=lambda: answers.append(served.client.events(2, wait_s=50)))
    waiter.start()
    assert served.daemon.waiting.wait(10)
    began = time.monotonic()
    served.close_server()
    waiter.join(10)
    assert answers == [[]] and time.monotonic() - began < 5
    assert not served.path.exists()


def test_socket_is_closed_to_others(served):
    assert stat.S_IMODE(served.path.stat().st_mode) == 0o660


def test_peer_is_who_the_kernel_says():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        peer = peer_of(ours)
    assert (peer.pid, peer.uid) == (os.getpid(), os.geteuid())
    assert peer.groups == {os.getegid(), *os.getgroups()}


def test_who_may_write():
    me, stranger = os.geteuid(), os.geteuid() + 12345
    assert may_write(Peer(1, 0, frozenset()), None)
    assert may_write(Peer(1, me, frozenset()), None)
    assert may_write(Peer(1, stranger, frozenset({7, 8})), 8)
    assert not may_write(Peer(1, stranger, frozenset({7})), 8)
    assert not may_write(Peer(1, stranger, frozenset({7})), None)
