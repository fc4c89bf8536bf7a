"""Whole runs by the real commands, with losses on both sides."""

import signal
import subprocess

import psutil
import pytest

from spotlightd.config import load
from spotlightd.demo.summary import summarise
from spotlightd.store.store import Store
from tests.e2e.conftest import SMALL, interrupt

pytestmark = [pytest.mark.slow, pytest.mark.fault, pytest.mark.timeout(240)]


def summary_of(host) -> dict:
    config, _ = load(None, SMALL, {})
    store = Store(host.state)
    try:
        return summarise(store, config, {}, 0.0)
    finally:
        store.close()


def test_a_killed_daemon_comes_back_and_the_agent_goes_on_untouched(host):
    first = host.daemon(run__iterations="3")
    host.wait_for(lambda status: True)
    agent = host.agent("vm", host.client.create_token(600, 1, "pool").token)
    host.wait_for(lambda status: status.iteration >= 1 and status.agents)
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = host.daemon("second", run__iterations="3")
    assert second.wait(120) == 0, host.tails()
    assert agent.wait(30) == 0, host.tails()
    assert "the run goes on in iteration" in host.log("second")
    assert "(epoch 2)" in host.log("second")
    summary = summary_of(host)
    assert summary["trajectories"]["lost"] == 0
    assert summary["iterations"] == 3
    assert summary["trajectories"]["rollout"] == 3 * 2 * 4
    assert not host.socket.exists()


def test_a_finished_run_ends_at_once_and_goes_on_when_given_more_iterations(host):
    assert host.daemon(run__iterations="1").wait(90) == 0, host.tails()
    assert host.daemon("again", run__iterations="1").wait(60) == 0, host.tails()
    assert summary_of(host)["iterations"] == 1
    assert host.daemon("more", run__iterations="2").wait(60) == 0, host.tails()
    assert summary_of(host)["iterations"] == 2


def test_ctrl_c_anywhere_leaves_no_process_and_no_socket(host):
    daemon = host.daemon(run__iterations="1000")
    host.wait_for(lambda status: True)
    agent = host.agent("vm", host.client.create_token(60, 1, "pool").token)
    host.wait_for(lambda status: status.iteration >= 1)
    families = host.families()
    assert len(families) >= 6  # daemon, trainer, its scorer; agent, worker, its scorer
    assert interrupt(agent) == 0, host.tails()
    assert interrupt(daemon) == 0, host.tails()
    _, alive = psutil.wait_procs(families, timeout=15)
    assert alive == []
    assert not host.socket.exists()


def test_a_killed_daemon_leaves_no_trainer_and_its_socket_is_taken_over(host):
    daemon = host.daemon(run__iterations="1000")
    host.wait_for(lambda status: status.iteration >= 1)
    children = psutil.Process(daemon.pid).children(recursive=True)
    assert children
    daemon.kill()
    daemon.wait()
    _, alive = psutil.wait_procs(children, timeout=15)
    assert alive == []
    again = host.daemon("again", run__iterations="2")
    assert again.wait(90) == 0, host.tails()


def test_a_killed_trainer_is_started_again_and_the_run_ends_well(host):
    daemon = host.daemon(run__iterations="4")
    host.wait_for(lambda status: status.iteration >= 1)
    (trainer,) = [
        child
        for child in psutil.Process(daemon.pid).children()
        if "spotlightd.trainer" in child.cmdline()
    ]
    trainer.kill()
    assert daemon.wait(120) == 0, host.tails()
    assert "the trainer ended with exit code -9: starting it again" in host.log("daemon")
    summary = summary_of(host)
    assert (summary["iterations"], summary["trajectories"]["lost"]) == (4, 0)


def test_the_control_socket_speaks_to_curl(host):
    host.daemon(run__iterations="1000")
    host.wait_for(lambda status: True)
    answer = subprocess.run(
        ["curl", "--silent", "--unix-socket", str(host.socket), "http://localhost/v1/status"],
        capture_output=True,
        check=False,
    )
    if answer.returncode == 127:
        pytest.skip("curl is not installed")
    assert b'"name":"spotlightd"' in answer.stdout


def test_the_bandit_plans_from_what_the_fleet_shows(host):
    sizes = {"planner__group_size": "8", "planner__train_size": "4"}
    daemon = host.daemon(run__iterations="8", trainer__optimizer_steps="4", **sizes)
    host.wait_for(lambda status: True)
    host.agent("vm", host.client.create_token(600, 1, "pool").token)
    host.wait_for(lambda status: status.iteration >= 6, 150)
    plan = host.client.plan()
    assert plan.mode == "bandit" and plan.iteration >= 6
    assert plan.reason and [arm.staleness for arm in plan.arms] == [1] * len(plan.arms)
    assert daemon.wait(120) == 0, host.tails()
    store = Store(host.state)
    try:
        metrics, counts = store.metrics(), store.request_counts()
        reasons = [row[4] for row in store.events(0, 1000) if row[3] == "planner"]
    finally:
        store.close()
    assert counts["explore"]["done"] > 0
    assert any("planner.rho" in row for row in metrics.values())
    assert any("seeds for each of 2 prompts" in reason for reason in reasons)
    assert any("planner.overran" in row for row in metrics.values())
    assert counts["rollout"]["done"] == 8 * 2 * 8, "whole groups are regenerated"
    assert {row["planner.trained"] for row in metrics.values() if "planner.trained" in row} == {8.0}


def trainer_processes(daemon) -> list[psutil.Process]:
    """torch.distributed.run and its ranks."""
    family = psutil.Process(daemon.pid).children(recursive=True)
    return [process for process in family if "spotlightd.trainer" in process.cmdline()]


@pytest.mark.timeout(480)
def test_two_ranks_train_sample_and_evaluate_the_average_and_one_of_them_may_die(host):
    daemon = host.daemon(trainer__ranks="2", trainer__ema_decay="0.9", run__iterations="2")
    host.wait_for(lambda status: status.iteration >= 1, 200)
    first = trainer_processes(daemon)
    assert len(first) == 3
    max(first, key=lambda process: process.pid).kill()
    assert daemon.wait(240) == 0, host.tails()
    _, alive = psutil.wait_procs(first, timeout=15)
    assert alive == []
    log = host.log("daemon")
    assert "starting it again" in log
    assert "self-check ok: an update needs about" in log and "self-check FAILED" not in log
    summary = summary_of(host)
    assert (summary["iterations"], summary["trajectories"]["lost"]) == (2, 0)
    store = Store(host.state)
    try:
        metrics = store.metrics()
    finally:
        store.close()
    # Sampling spreads a batch over the ranks, training spreads trajectories.
    differences = [m for row in metrics.values() for k, m in row.items() if "difference." in k]
    assert differences and max(differences) < 1e-5
    assert "held_out.ocr" in metrics[0] and "held_out.ocr" in metrics[2]
