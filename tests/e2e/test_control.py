"""A real run, steered and looked at by the commands that an operator types."""

import json
import os
import subprocess
import urllib.request

import pytest

from tests.e2e.conftest import BIN

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def ctl(host, *arguments, code=0):
    environ = {**os.environ, "SPOTLIGHT_CONTROL_SOCKET": str(host.socket)}
    result = subprocess.run(
        [str(BIN / "spotlightctl"), *arguments],
        capture_output=True, text=True, timeout=110, env=environ,
    )  # fmt: skip
    assert result.returncode == code, (arguments, result.stderr, host.tails())
    return result.stdout


def test_pause_look_resume_replay_export_and_stop(host, tmp_path):
    host.daemon(run__iterations="40", telemetry__trackers='["tensorboard"]',
                store__trajectories_kept="100")  # fmt: skip
    host.wait_for(lambda status: True)
    token = host.client.create_token(600, 2, "default").token
    agent = host.agent("one", token)
    status = host.wait_for(lambda s: s.policy_version >= 1, 100)

    # Paused: what was leased ends, nothing new is leased, and the run stands.
    assert "paused" in ctl(host, "runs", "pause")
    assert json.loads(ctl(host, "runs", "--json"))[0]["state"] == "paused"
    still = host.wait_for(
        lambda s: (
            not any("leased" in states for states in s.requests.values()) and s.phase != "train"
        ),
        60,
    )
    with urllib.request.urlopen(f"{status.dashboard}metrics", timeout=10) as answer:
        text = answer.read().decode()
    assert 'spotlight_run_info{phase="' in text and 'state="paused"' in text
    assert token not in text and token.rpartition(".")[2] not in text

    # Everything that was committed can be looked at meanwhile, and it stands still.
    page = json.loads(ctl(host, "samples", "--kind", "rollout", "--limit", "500", "--json"))
    done = [s for s in page["samples"] if s["state"] == "done" and s["has_trajectory"]]
    assert done and all(s["leased_at"] > 0 and s["scores"] for s in done)
    again = ("replay", done[0]["request_id"], "--state-dir", str(host.state))
    found = json.loads(ctl(host, *again, "--json"))
    assert found["same"] and found["difference"] <= 1e-5
    out = ctl(host, "export", str(tmp_path / "adapter"))
    assert (
        "README.md" in out and (tmp_path / "adapter" / "pytorch_lora_weights.safetensors").exists()
    )
    assert host.client.status().iteration == still.iteration

    assert "running" in ctl(host, "runs", "resume")
    host.wait_for(lambda s: s.policy_version > still.policy_version, 60)

    # Revoked: refused on the connection that it has.
    (agent_id,) = [row.agent_id for row in host.client.agents() if row.role == "agent"]
    ctl(host, "agents", "revoke", agent_id)
    host.wait_for(lambda s: s.agents.get("live", 0) == 0, 30)
    ctl(host, "agents", "forget", agent_id)
    assert agent_id not in ctl(host, "agents")
    agent.kill()

    ledger = json.loads(ctl(host, "ledger", "--json"))
    assert ledger["spot"] > 0 and len(ledger["spending"]) > 1
    assert json.loads(ctl(host, "timeline"))["traceEvents"]
    assert {r["key"]: r["origin"] for r in _rows(host)}["run.iterations"] == "command line"
    daemon = host.started[0]
    ctl(host, "runs", "stop")
    assert daemon.wait(60) == 0
    assert list((host.state / "telemetry" / "tensorboard").rglob("events.out.*"))
    assert token.rpartition(".")[2] not in host.log("daemon")


def _rows(host):
    return [
        {"key": key, **row}
        for key, row in json.loads(ctl(host, "config", "show", "--json")).items()
    ]
