"""Addresses beyond those of the first version: samples, streams, export, the dashboard's port."""

import http.client
import io
import json
import zipfile
from urllib.parse import urlsplit

import pytest

from spotlightd.control import unpack
from spotlightd.control.endpoints import ENDPOINTS
from spotlightd.errors import VersionSkewError


def ask(served, method, path, body=None, headers=(), tcp=False):
    connection = http.client.HTTPConnection("localhost", timeout=10)
    if tcp:
        connection = http.client.HTTPConnection(urlsplit(served.dashboard).netloc, timeout=10)
    else:
        connection.sock = served.connect()
    try:
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers
    finally:
        connection.close()


def test_samples_by_page(served):
    page = json.loads(ask(served, "GET", "/v1/samples?kind=rollout&limit=5")[1])
    assert len(page["samples"]) == 5 and page["samples"][0]["seed"] == "0"
    more = json.loads(ask(served, "GET", f"/v1/samples?limit=5&after={page['next_after']}")[1])
    assert not {s["request_id"] for s in page["samples"]} & {
        s["request_id"] for s in more["samples"]
    }


@pytest.mark.parametrize(
    "path",
    [
        "/v1/samples/../../etc/passwd",
        "/v1/samples/..%2f..%2fetc%2fpasswd",
        "/v1/samples/..%2f..%2fetc%2fpasswd/image",
        "/v1/samples/%2e%2e/image",
        "/v1/samples/%00/image",
        "/v1/samples/%ff%fe",
        "/v1/samples/" + "a" * 5000,
        "/v1/export?version=../../etc",
        "/v1/export?version=-1",
        "/v1/export?version=99",
        "/v1/export?version=0&version=1",
        "/v1/export?out=/etc/cron.d",
        "/static/../../../etc/passwd",
        "/..%2f..%2f..%2fetc%2fpasswd",
    ],
)
@pytest.mark.parametrize("tcp", [False, True])
def test_path_tricks_are_refused(served, path, tcp):
    status, body, _ = ask(served, "GET", path, tcp=tcp)
    assert status in (400, 404) and b"root:" not in body
    assert "error" in json.loads(body)


@pytest.mark.parametrize("query", ["limit=0", "kind=all", "unknown=1", "after=1.5", "limit=%D9%A1"])
def test_wrong_parameters_are_named(served, query):
    status, body, _ = ask(served, "GET", f"/v1/samples?{query}")
    assert status == 400 and query.partition("=")[0] in json.loads(body)["error"]


def test_a_picture_may_be_kept(served):
    status, body, headers = ask(served, "GET", "/v1/samples/evaluate-6-TEA-1/image")
    assert (status, body[:4], headers["Content-Type"]) == (200, b"\x89PNG", "image/png")
    assert "immutable" in headers["Cache-Control"]


def test_ready_says_what_it_waits_for(served):
    assert ask(served, "GET", "/readyz")[0] == 200
    served.daemon.waits_for = "the trainer"
    status, body, _ = ask(served, "GET", "/readyz")
    assert (status, json.loads(body)) == (503, {"ok": False, "waiting_for": "the trainer"})
    assert ask(served, "GET", "/healthz")[0] == 200


def test_the_dashboards_port_only_reads(served):
    for endpoint in ENDPOINTS:
        path = endpoint.path.format(agent_id="a-1", request_id="evaluate-6-TEA-1", pool="spot")
        if endpoint.handler == "stream":
            continue
        status, body, headers = ask(served, endpoint.method, path, tcp=True)
        reads = endpoint.method == "GET" and not endpoint.socket_only
        assert (status == 200) == reads, (path, status, body)
        assert not reads or "default-src 'none'" in headers["Content-Security-Policy"]
    assert served.daemon.calls == []


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_another_name_for_this_machine_is_refused(served, host):
    assert ask(served, "GET", "/v1/status", headers=[("Host", host)], tcp=True)[0] == 403
    assert ask(served, "GET", "/v1/status", headers=[("Host", "localhost:1")], tcp=True)[0] == 200


def test_the_stream_tells_status_and_events(served):
    connection = http.client.HTTPConnection("localhost", timeout=10)
    connection.sock = served.connect()
    connection.request("GET", "/v1/stream?after=0", headers={"Last-Event-ID": "1"})
    answer = connection.getresponse()
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    lines = [answer.readline().decode().rstrip() for _ in range(7)]
    # An event that was seen before the connection broke is not told again.
    assert lines[0] == "event: status" and json.loads(lines[1][6:])["run"] == "words"
    assert lines[3:5] == ["event: happened", "id: 2"]
    assert json.loads(lines[5][6:])["text"] == "event 2"
    served.close_server()
    connection.close()


def test_run_and_agents_are_steered(served):
    for verb, path in (("paused", "pause"), ("running", "resume"), ("stopped", "stop")):
        assert ask(served, "POST", f"/v1/run/{path}")[0] in (200, 202)
        assert served.daemon.calls[-1] == ("run", verb)
    assert ask(served, "POST", "/v1/agents/a-1/revoke")[0] == 200
    assert ask(served, "POST", "/v1/agents/a-1/forget")[0] == 200
    assert served.daemon.calls[-2:] == [("revoke", "a-1"), ("forget", "a-1")]
    assert ask(served, "POST", "/v1/agents/nobody/revoke")[0] == 404
    assert ask(served, "POST", "/v1/run/pause", b'{"for": 3}')[0] == 400


def archive(*names):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name in names:
            file.writestr(name, "x")
    return packed.getvalue()


@pytest.mark.parametrize("name", ["../up", "/etc/x", "a/b", "..", ".hidden", "a\\b", "C:x"])
def test_an_archive_with_paths_is_not_unpacked(tmp_path, name):
    with pytest.raises(VersionSkewError, match="no plain file name"):
        unpack.unpack(archive("README.md", name), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_archive_of_plain_files_is(tmp_path):
    (path,) = unpack.unpack(archive("README.md"), tmp_path / "out")
    assert path.read_text() == "x"
    for wrong in (b"no zip", archive()):
        with pytest.raises(VersionSkewError):
            unpack.unpack(wrong, tmp_path / "other")
