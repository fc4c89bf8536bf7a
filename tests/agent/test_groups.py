"""Real agents whose workers share images: views form, break, freeze, and nothing is lost."""

import json
import re
import signal

import pytest
import torch

from spotlightd.dit.sampler import Sampler
from spotlightd.dit.trajectory import decode_trajectory
from spotlightd.errors import ExitCode
from spotlightd.wire import messages as m

pytestmark = pytest.mark.slow
LONG = 300
"""Denoising steps: seconds of work, in which a last wave is noticed and shared out anew."""


async def ready(daemon, policy, state_dir, workers, speeds):
    """Start an agent that believes in `speeds` (degree -> speedup), and wait for its credit."""
    from agent.speeds import model_digest
    from spotlightd.models import EMBEDDED_DIR

    state_dir.mkdir()
    steps = {str(degree): 0.02 / speedup for degree, speedup in speeds.items()}
    known = {model_digest(EMBEDDED_DIR): {"32x128": steps}}
    (state_dir / "speeds.json").write_text(json.dumps(known))
    daemon.publish(0, policy[1])
    agent = await daemon.start_agent(
        f"--workers={workers}", "--max-batch=2", f"--state-dir={state_dir}"
    )
    await daemon.until(lambda: daemon.all(m.Give), agent)
    return agent


async def until_log(daemon, agent, pattern, times=1):
    """Wait for what the agent logs; its heartbeats wake us."""
    return await daemon.until(
        lambda: len(found := re.findall(pattern, agent.log)) >= times and found, agent
    )


def check(policy, daemon, requests, results):
    """Every trajectory is the one that a process alone produces, and came once."""
    model, _ = policy
    assert sorted(r.request_id for r in results) == sorted(r.request_id for r in requests)
    for request in requests:
        (result,) = [r for r in results if r.request_id == request.request_id]
        data = daemon.frames(result)["trajectory"]
        got = decode_trajectory(data, request, model.latent_shape(32, 128))
        sampler = Sampler(model)
        alone = sampler.start(request)
        while not alone.done:
            sampler.advance([alone])
        torch.testing.assert_close(got.latents_LD, alone.latents_LD, atol=1e-5, rtol=0)
        assert got.window_log_probs == pytest.approx(alone.window_log_probs, abs=1e-5)


async def results_of(daemon, agent, count):
    return await daemon.until(
        lambda: len(found := daemon.all(m.Result)) == count and found, agent, 90.0
    )


def workers_of(agent):
    return [child for child in agent.children() if "agent.worker" in child.cmdline()]


@pytest.mark.fault
def test_a_last_image_is_shared_and_survives_its_leader(play, policy, make_request, tmp_path):
    request = make_request(1, steps=LONG)

    async def script(daemon):
        agent = await ready(daemon, policy, tmp_path / "vm", 2, {1: 1.0, 2: 1.9})
        before = {child.pid for child in workers_of(agent)}
        daemon.grant(request)
        await until_log(daemon, agent, r"generation \d+: workers \(0, 1\)")
        # Slots are filled in order, so the first process is worker 0, which leads.
        min(workers_of(agent), key=lambda child: child.create_time()).kill()
        await until_log(daemon, agent, r"worker 0 died")
        results = await results_of(daemon, agent, 1)
        check(policy, daemon, [request], results)
        assert not daemon.all(m.HandBack), "the survivor held all that was needed"
        assert len(before & {child.pid for child in workers_of(agent)}) == 1
        agent.process.send_signal(signal.SIGINT)
        assert await agent.exit_code() == ExitCode.OK

    play(script)
