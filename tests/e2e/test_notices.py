"""Real agents on four clouds at once: one fake metadata service, and a notice for all of them.

`NOTICE_ROUNDS=25 python -m pytest -s tests/e2e/test_notices.py` does it a hundred times, and says
what it took at p99.
"""

import json
import math
import os
import re
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from spotlightd.store.store import Store
from tests.e2e.conftest import interrupt

ROUNDS = int(os.environ.get("NOTICE_ROUNDS", "1"))
pytestmark = [pytest.mark.slow, pytest.mark.fault, pytest.mark.timeout(240 * ROUNDS)]

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


def all_useful(host):
    """Wait until every agent of the round has committed something; fail with the logs."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        rows = [row for row in host.client.agents() if row.role == "agent" and row.state == "live"]
        if len(rows) == len(CLOUDS) and all(row.gpu_seconds["useful"] > 0 for row in rows):
            return
        time.sleep(0.1)
    raise AssertionError(host.tails())


def play_round(host, service, number) -> list[float]:
    """Four agents join, work and are told to leave; return their seconds from then to goodbye."""
    Service.announced.clear()
    token = host.client.create_token(600, len(CLOUDS), "pool").token
    agents = {
        f"{name}{number}": host.agent(
            f"{name}{number}", token, "--preempt-provider", name, "--metadata-url", service
        )
        for name in CLOUDS
    }
    all_useful(host)
    announced_at = time.time()
    Service.announced.set()
    for name, process in agents.items():
        assert process.wait(40) == 3, host.tails()
        assert "metadata: everything is committed" in host.log(name)
    events = host.client.events(limit=1000)
    gone = {name: [e.time for e in events if f"({name}) is gone" in e.text] for name in agents}
    return [at - announced_at for (at,) in gone.values()]


def steps_kept(store: Store) -> int:
    """Return the denoising steps that results and step commits hold."""
    rows = store.requests([0])
    done = [len(r.request.sampler.sigmas) - 1 for r in rows if r.state == "done"]
    return sum(done) + sum(r.progress_step for r in rows if r.state != "done")


def test_upon_a_notice_every_step_is_committed_and_the_agent_gone_in_time(host, service):
    # Work without end, by the agents alone, each request by one of them at a time: so whatever
    # they did is in a result or a step commit, or it was lost. Nothing is committed but by notice.
    settings = {"run__trainer_rolls_out": "false", "fleet__backup_leases": "false"}
    settings |= {"fleet__commit_every": "0", "planner__mode": '"off"'}
    host.daemon(run__iterations="1", planner__group_size="4096", **settings)
    host.wait_for(lambda status: True)
    seconds = [s for number in range(ROUNDS) for s in play_round(host, service, number)]
    status = host.client.status()
    assert status.agents == {"gone": len(CLOUDS) * ROUNDS}
    assert status.lost == 0
    assert interrupt(host.started[0]) == 0
    store = Store(host.state)
    try:
        kept = steps_kept(store)
    finally:
        store.close()
    logs = [path.read_text() for path in host.root.glob("*.log")]
    done = sum(int(n) for log in logs for n in re.findall(r"denoising steps done: (\d+)", log))
    assert kept == done > 0
    p99 = sorted(seconds)[math.ceil(0.99 * len(seconds)) - 1]
    print(f"{len(seconds)} notices, {done} steps, 0 lost; notice to goodbye p99 {p99:.2f} s")
    assert p99 < 5.0
