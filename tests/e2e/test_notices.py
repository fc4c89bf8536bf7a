"""Real agents on four clouds at once: one fake metadata service, and a notice for all of them."""

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.fault, pytest.mark.timeout(240)]

CLOUDS = ("aws", "gcp", "azure", "alibaba")
LEFT_S = 60


class Service(BaseHTTPRequestHandler):
    """All four services; none announces anything until `announced` is set."""

    announced = threading.Event()

    def do_PUT(self):
        self.answer(200, "token")

    def do_GET(self):
        if "compute/name" in self.path:
            self.answer(200, "vm")
        elif not self.announced.is_set():
            self.answer(404, "")
        else:
            self.answer(200, self.notice())

    def notice(self) -> str:
        at = datetime.now(UTC) + timedelta(seconds=LEFT_S)
        if "instance-action" in self.path:
            return json.dumps({"action": "terminate", "time": at.isoformat()})
        if "preempted" in self.path:
            return "TRUE"
        if "scheduledevents" in self.path:
            event = {
                "EventType": "Preempt",
                "EventStatus": "Scheduled",
                "Resources": ["vm"],
                "NotBefore": format_datetime(at, usegmt=True),
            }
            return json.dumps({"Events": [event]})
        return at.isoformat()

    def answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service():
    Service.announced.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_upon_a_notice_every_agent_commits_and_leaves_in_time(host, service):
    host.daemon(run__iterations="100000", planner__group_size="16", planner__candidates="16")
    host.wait_for(lambda status: True)
    token = host.client.create_token(600, len(CLOUDS), "pool").token
    agents = {
        name: host.agent(name, token, "--preempt-provider", name, "--metadata-url", service)
        for name in CLOUDS
    }
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        rows = [row for row in host.client.agents() if row.role == "agent"]
        if len(rows) == len(CLOUDS) and all(row.gpu_seconds["useful"] > 0 for row in rows):
            break
        time.sleep(0.1)
    else:
        raise AssertionError(host.tails())
    Service.announced.set()
    for name, process in agents.items():
        assert process.wait(40) == 3, host.tails()
        assert f"{name} metadata: everything is committed" in host.log(name)
    events = host.client.events(limit=1000)
    for name in CLOUDS:
        (noticed,) = [e.time for e in events if f"({name}) is draining" in e.text]
        (gone,) = [e.time for e in events if f"({name}) is gone" in e.text]
        assert gone - noticed < 5.0
    status = host.client.status()
    assert status.lost == 0
    assert status.agents == {"gone": len(CLOUDS)}
