"""Real agents with real workers: their work, and every way in which they may leave."""

import math
import signal
import time

import psutil
import pytest
import torch

from spotlightd.dit.sampler import Sampler
from spotlightd.dit.trajectory import decode_trajectory
from spotlightd.errors import ExitCode
from spotlightd.wire import messages as m

pytestmark = pytest.mark.slow
LONG = 800
"""Denoising steps of work that outlasts a test."""


async def ready(daemon, policy, *arguments):
    """Publish version 0, start an agent and wait until it asks for work."""
    daemon.publish(0, policy[1])
    heard = len(daemon.heard)
    agent = await daemon.start_agent(*arguments)
    await daemon.until(lambda: daemon.all(m.Give, heard), agent)
    return agent


def undisturbed(model, request):
    sampler = Sampler(model)
    trajectory = sampler.start(request)
    while not trajectory.done:
        sampler.advance([trajectory])
    return trajectory


def decode(model, data, request):
    return decode_trajectory(data, request, model.latent_shape(32, 128))


def test_leases_become_results_and_new_weights_new_credit(play, policy, make_request, tmp_path):
    model, folder = policy

    async def script(daemon):
        began = time.monotonic()
        agent = await ready(daemon, policy, "--max-batch=4")
        assert daemon.all(m.Give)[0] == m.Give(4, (0,))
        kinds = ("explore", "rollout", "evaluate")
        requests = {kind: make_request(1, kind) for kind in kinds}
        daemon.grant(*requests.values())
        results = await daemon.until(
            lambda: len(found := daemon.all(m.Result)) == 3 and found, agent
        )
        by_kind = {result.request_id.partition("-")[0]: result for result in results}
        names = {kind: set(daemon.frames(by_kind[kind])) for kind in kinds}
        assert names == {
            "explore": set(),
            "rollout": {"trajectory", "image"},
            "evaluate": {"image"},
        }
        for result in results:
            assert result.scores.keys() == {"ocr", "ocr_ctc"}
            assert all(math.isfinite(score) for score in result.scores.values())
        # One seed, one image: whatever the kind, the same was read.
        assert len({result.text for result in results}) == 1
        data = daemon.frames(by_kind["rollout"])["trajectory"]
        got = decode(model, data, requests["rollout"])
        alone = undisturbed(model, requests["rollout"])
        torch.testing.assert_close(got.latents_LD, alone.latents_LD, atol=1e-5, rtol=0)
        assert got.window_log_probs == pytest.approx(alone.window_log_probs, abs=1e-5)

        heard = len(daemon.heard)
        daemon.publish(1, folder)
        give = await daemon.until(
            lambda: [g for g in daemon.all(m.Give, heard) if 1 in g.versions], agent
        )
        assert give[0].versions == (0, 1)
        beats = await daemon.until(
            lambda: [b for b in daemon.all(m.Heartbeat, heard) if b.ready_versions == (0, 1)],
            agent,
        )
        beat = beats[-1]
        assert beat.denoise_steps == 18, "three trajectories of six steps"
        assert beat.holds == (0, 1)
        assert beat.busy_s > 0 and beat.loading_s > 0
        spent = beat.busy_s + beat.loading_s + beat.idle_s
        assert spent <= time.monotonic() - began

        (lease,) = daemon.grant(make_request(2, "explore", LONG))
        held = (m.HeldLease(lease.request.request_id, lease.fence),)
        daemon.send(m.Withdraw(held))
        await daemon.until(lambda: [b for b in daemon.all(m.HandBack) if b.held == held], agent)
        # A message that makes no sense is dropped, and a drain may come without a reason.
        daemon.send(m.Grant((m.Lease(make_request(3), 99, 60.0, resume_step=2),)))
        daemon.send(m.Drain(20.0, ""))
        assert await daemon.farewell(agent) == ExitCode.DRAINED
        assert len(daemon.all(m.Notice)) == 1

    play(script)


@pytest.mark.fault
@pytest.mark.parametrize("source", ["signal", "file"])
def test_a_notice_saves_what_is_in_flight(play, policy, make_request, tmp_path, source):
    path = tmp_path / "preempt"
    first, second = make_request(1, steps=LONG), make_request(2, steps=LONG)

    async def script(daemon):
        agent = await ready(daemon, policy, f"--preempt-file={path}")
        leases = daemon.grant(first, second)
        await daemon.until(lambda: len(daemon.all(m.Progress)) >= 2, agent)
        children = agent.children()
        heard, began = len(daemon.heard), time.monotonic()
        if source == "signal":
            agent.process.send_signal(signal.SIGTERM)
        else:
            path.write_text("20")
        assert await daemon.farewell(agent) == ExitCode.DRAINED
        assert time.monotonic() - began < 15, "settled agents leave before their deadline"
        (notice,) = daemon.all(m.Notice, heard)
        expected = ("SIGTERM", 30.0) if source == "signal" else ("file preempt", 20.0)
        assert (notice.source, notice.deadline_s) == expected
        saved = {p.request_id: p for p in daemon.all(m.Progress, heard)}
        for lease in leases:
            progress = saved[lease.request.request_id]
            state = decode(policy[0], daemon.frames(progress)["trajectory"], lease.request)
            assert progress.fence == lease.fence
            assert state.step_index == progress.step_index > 0
        (back,) = daemon.all(m.HandBack, heard)
        assert {lease.fence for lease in back.held} == {lease.fence for lease in leases}
        assert not psutil.wait_procs(children, timeout=5)[1]

    play(script)


@pytest.mark.fault
def test_another_agent_goes_on_bit_for_bit(play, policy, make_request):
    model, _ = policy
    request = make_request(3, steps=300)

    async def script(daemon):
        agent = await ready(daemon, policy)
        daemon.grant(request)
        await daemon.until(lambda: daemon.all(m.Progress), agent)
        agent.process.send_signal(signal.SIGTERM)
        assert await agent.exit_code() == ExitCode.DRAINED
        last = daemon.all(m.Progress)[-1]
        assert 0 < last.step_index < 300
        other = await ready(daemon, policy)
        state = daemon.frames(last)["trajectory"]
        (lease,) = daemon.grant(request, resume=(last.step_index, state))
        (result,) = await daemon.until(lambda: daemon.all(m.Result), other)
        assert (result.fence, result.resumed_from) == (lease.fence, last.step_index)
        got = decode(model, daemon.frames(result)["trajectory"], request)
        whole = undisturbed(model, request)
        # Both ran alone in their batch: the same batch shape.
        assert torch.equal(got.latents_LD, whole.latents_LD)
        assert got.window_log_probs == whole.window_log_probs

    play(script)


@pytest.mark.fault
def test_a_daemon_that_acknowledges_nothing_does_not_hold_it_past_the_deadline(
    play, policy, make_request
):
    async def script(daemon):
        agent = await ready(daemon, policy, "--notice-grace=3")
        daemon.acks = False
        daemon.grant(make_request(1, steps=LONG))
        await daemon.until(lambda: daemon.all(m.Progress), agent)
        began = time.monotonic()
        agent.process.send_signal(signal.SIGTERM)
        assert await daemon.farewell(agent) == ExitCode.DRAINED
        assert time.monotonic() - began < 5
        assert isinstance(goodbye := daemon.heard[-1][0], m.Goodbye)
        assert "deadline" in goodbye.reason

    play(script)


@pytest.mark.fault
def test_sigkill_leaves_no_child_behind(play, policy, make_request):
    async def script(daemon):
        agent = await ready(daemon, policy, "--workers=2", "--max-batch=1")
        daemon.grant(make_request(1, steps=LONG), make_request(2, steps=LONG))
        await daemon.until(lambda: daemon.all(m.Progress), agent)
        children = agent.children()
        assert len(children) == 3
        agent.process.kill()
        assert await agent.exit_code() == -signal.SIGKILL
        assert not psutil.wait_procs(children, timeout=5)[1]

    play(script)


@pytest.mark.fault
def test_killed_children_are_replaced_and_nothing_is_lost(play, policy, make_request):
    request = make_request(1, steps=LONG)

    async def script(daemon):
        agent = await ready(daemon, policy)
        (lease,) = daemon.grant(request)
        await daemon.until(lambda: daemon.all(m.Progress), agent)
        agent.child("agent.worker").kill()
        (back,) = await daemon.until(lambda: daemon.all(m.HandBack), agent)
        assert back.held == (m.HeldLease(request.request_id, lease.fence),)
        heard = len(daemon.heard)
        await daemon.until(lambda: daemon.all(m.Give, heard), agent)
        agent.child("spotlightd.rewards.scorer").kill()
        short = make_request(2)
        daemon.grant(short)
        (result,) = await daemon.until(lambda: daemon.all(m.Result), agent)
        assert result.request_id == short.request_id
        agent.process.send_signal(signal.SIGINT)
        assert await agent.exit_code() == ExitCode.OK
        assert "worker 0 died" in agent.log and "scorer died" in agent.log

    play(script)


@pytest.mark.fault
def test_a_daemon_that_comes_back_is_told_what_is_held(play, policy, make_request):
    async def script(daemon):
        agent = await ready(daemon, policy)
        daemon.acks = False
        done, going = daemon.grant(make_request(1), make_request(2, steps=LONG))
        (result,) = await daemon.until(lambda: daemon.all(m.Result), agent)
        heard = len(daemon.heard)
        daemon.acks, daemon.epoch = True, 2
        hello = (await daemon.until(lambda: daemon.all(m.Hello, heard), agent))[0]
        heard = [message for message, _ in daemon.heard].index(hello, heard)
        held = {(lease.request_id, lease.fence) for lease in hello.held}
        assert held == {(lease.request.request_id, lease.fence) for lease in (done, going)}
        again = await daemon.until(lambda: daemon.all(m.Result, heard), agent)
        assert again[0] == result
        # Credit given before is void; all but the place of what is in flight is given again.
        give = await daemon.until(lambda: daemon.all(m.Give, heard), agent)
        assert give[0].credit == 7

    play(script)
