"""Strangers in great number knock at a daemon's ports while a run goes on with an agent."""

import json
import subprocess
import sys

import pytest

from tests.security import flood

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SUSPECT_S = 4.0
"""As by default: silence after which an agent is suspected."""


def test_ten_thousand_strangers_cost_no_heartbeat_of_a_run(host):
    daemon = host.daemon(
        run__iterations="1000", fleet__suspect_s=str(SUSPECT_S), fleet__lost_s="10"
    )
    host.wait_for(lambda status: True)
    agent = host.agent("vm", host.client.create_token(600, 1, "pool").token)
    before = host.wait_for(lambda s: s.iteration >= 1 and s.agents.get("live") == 1, 120)
    ports = json.loads((host.state / "ports.json").read_bytes())
    knocked = [str(ports["link_port"]), str(ports["enrol_port"])]
    strangers = subprocess.Popen([sys.executable, flood.__file__, *knocked], stdout=subprocess.PIPE)
    host.started.append(strangers)

    # Each look asks the daemon: how long it takes to answer is the time between two.
    silences, states = [], set()
    while strangers.poll() is None:
        (row,) = [row for row in host.client.agents() if row.role == "agent"]
        silences.append(row.last_seen_s)
        states.add(row.state)
    assert strangers.communicate() == (b"done\n", None) and strangers.returncode == 0, host.tails()
    assert len(silences) > 20 and max(silences) < SUSPECT_S and states == {"live"}

    # The run went on meanwhile and goes on now, and nobody was missed by anybody.
    after = host.wait_for(lambda s: s.iteration > before.iteration, 60)
    assert after.lost == 0 and after.agents == {"live": 1}
    texts = [row.text for row in host.client.events(0, limit=1000)]
    assert not [text for text in texts if "suspect" in text or "silent" in text], texts
    assert agent.poll() is None and daemon.poll() is None
