"""The demo's script: each loss strikes in a rollout, and only once."""

import msgspec

from spotlightd.control.api import AgentRow, Status
from spotlightd.demo.story import Join, Kill, Preempt, Story


def status(iteration: int, phase: str, open_rollouts: int = 40) -> Status:
    plain = dict.fromkeys(("name", "version", "state_dir", "run"), "x") | dict.fromkeys(
        ("epoch", "pid", "uptime_s", "policy_version", "lost"), 0
    )
    body = plain | {
        "protocol": (1, 0),
        "phase": phase,
        "iteration": iteration,
        "iterations": 20,
        "reward": {"control_mean": None, "held_out": ()},
        "agents": {},
        "requests": {"rollout": {"queued": open_rollouts - 8, "leased": 8, "done": 900}},
        "gpu_seconds": {},
        "cost": {"currency": "USD", "reserved": 0.0, "spot": 0.0, "all_reserved": 0.0},
    }
    return msgspec.convert(body, Status, strict=False)


def agents(leases: int, state: str = "live") -> dict[str, AgentRow]:
    return {
        name: AgentRow(
            agent_id=name, name=name, role="agent", state=state, workers=1, leases=leases,
            versions=(), last_seen_s=0.0, gpu_seconds={},
        )
        for name in ("vm-a", "vm-b", "vm-c")
    }  # fmt: skip


def test_losses_wait_for_a_rollout_with_leases():
    story = Story(20)
    assert story.next_step(status(5, "rollout"), agents(8)) is None
    assert story.next_step(status(6, "train"), agents(8)) is None
    assert story.next_step(status(6, "rollout"), agents(0)) is None
    assert story.next_step(status(6, "rollout", open_rollouts=9), agents(8)) is None
    assert story.next_step(status(6, "rollout"), agents(8)) == Preempt("vm-b")
    assert story.next_step(status(7, "rollout"), agents(8)) is None
    assert story.next_step(status(10, "train"), agents(0)) == Join("vm-c")
    assert story.next_step(status(13, "rollout"), agents(8, "suspect")) is None
    assert story.next_step(status(13, "rollout"), agents(8)) == Kill("vm-a")
    assert story.next_step(status(19, "rollout"), agents(8)) is None
