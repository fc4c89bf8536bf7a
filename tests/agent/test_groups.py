"""Real agents whose workers share images: views form, break, freeze, and nothing is lost."""

import asyncio
import json
import re
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from agent.arrange import Arrangement
from agent.speeds import Speeds, model_digest
from spotlightd.dit.degrees import Curve
from spotlightd.dit.sampler import Sampler
from spotlightd.dit.trajectory import decode_trajectory
from spotlightd.errors import ExitCode
from spotlightd.models import EMBEDDED_DIR
from spotlightd.wire import messages as m
from spotlightd.wire import worker as w

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
LONG = 300
"""Denoising steps: seconds of work, in which a last wave is noticed and shared out anew."""


async def ready(daemon, policy, state_dir, workers, speeds):
    """Start an agent that believes in `speeds` (degree -> speedup), and wait for its credit."""
    state_dir.mkdir()
    steps = {str(degree): 0.02 / speedup for degree, speedup in speeds.items()}
    known = {model_digest(EMBEDDED_DIR): {"32x128": steps}}
    (state_dir / "speeds.json").write_text(json.dumps(known))
    daemon.publish(0, policy[1])
    agent = await daemon.start_agent(
        f"--workers={workers}", "--max-batch=2", f"--state-dir={state_dir}", "--max-sp-degree=8"
    )
    await daemon.until(lambda: daemon.all(m.Give), agent, 120.0)
    return agent


def same_as_alone(policy, data, request):
    model, _ = policy
    got = decode_trajectory(data, request, model.latent_shape(32, 128))
    sampler = Sampler(model)
    alone = sampler.start(request)
    while not alone.done:
        sampler.advance([alone])
    torch.testing.assert_close(got.latents_LD, alone.latents_LD, atol=1e-5, rtol=0)
    assert got.window_log_probs == pytest.approx(alone.window_log_probs, abs=1e-5)


def check(policy, daemon, requests, results):
    """Every trajectory is the one that a process alone produces, and came once."""
    assert sorted(r.request_id for r in results) == sorted(r.request_id for r in requests)
    for request in requests:
        (result,) = [r for r in results if r.request_id == request.request_id]
        same_as_alone(policy, daemon.frames(result)["trajectory"], request)


@pytest.mark.timeout(240)
def test_a_last_image_is_shared_by_all_workers(play, policy, make_request, tmp_path):
    def shared(agent):
        return re.search(r"generation \d+: workers \(0, 1\)", agent.log)

    async def script(daemon):
        # So fast that two are better on any machine, once its own degree 1 has been measured.
        agent = await ready(daemon, policy, tmp_path / "vm", 2, {1: 1.0, 2: 200.0})
        requests = []
        while not shared(agent):  # the first may be done before the second worker is ready
            requests.append(make_request(len(requests) + 1, steps=LONG))
            daemon.grant(requests[-1])
            await daemon.until(
                lambda: shared(agent) or len(daemon.all(m.Result)) == len(requests), agent
            )
            assert len(requests) < 5, agent.log
        results = await daemon.until(
            lambda: len(found := daemon.all(m.Result)) == len(requests) and found, agent
        )
        check(policy, daemon, requests, results)
        beat = daemon.all(m.Heartbeat)[-1]
        most = len(requests) * (LONG + 1)
        assert beat.denoise_steps <= most, "a step of two workers counts once"
        agent.process.send_signal(signal.SIGINT)
        assert await agent.exit_code() == ExitCode.OK
        known = json.loads((tmp_path / "vm" / "speeds.json").read_text())
        assert {"1", "2"} <= next(iter(known.values()))["32x128"].keys()

    play(script)


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import _vm

    _vm.preload()
    yield _vm
    sys.modules.pop("_vm")


@pytest.mark.timeout(240)
def test_a_notice_is_beaten_by_sharing_the_image(bench, policy):
    """By what was measured, one worker alone would not end it in time, and two would."""

    class Measured(Speeds):
        def measured(self, size, most):
            return Curve.of({1: 1.0, 2: 50.0})

        def step_s(self, size):
            return 1.0

    request = bench.make_request(1, 100)

    async def script():
        async with bench.Vm(2) as vm:
            vm.groups.speeds = Measured(Path(vm._folder.name) / "none.json", "embedded")
            vm.grant([request])
            await vm.until(lambda: vm.first(w.Boundary, 0.0))
            noticed = time.monotonic()
            vm.work.leave(60.0)
            await vm.until(lambda: vm.frames)
            assert vm.first(w.Entered, noticed), "it was not shared"
            assert vm.work.leaving is not None, "it was flushed"
            return vm

    vm = asyncio.run(script())
    assert vm.committed == []
    same_as_alone(policy, vm.frames[request.request_id], request)


@pytest.mark.fault
@pytest.mark.timeout(240)
def test_deaths_and_freezes_cost_a_step_each_and_nobody_else_a_restart(bench, policy):
    """Three workers share an image; the leader is killed, then a follower stops answering."""
    requests = [bench.make_request(seed, 100) for seed in (1, 2)]
    everybody, timeout_s = (0, 1, 2), 2.0

    def view(vm, index=1):
        return vm.groups.views.view_of(index)

    async def until_sharing(vm, members):
        await vm.until(
            lambda: (
                (v := view(vm, members[0]))
                and v.indexes == members
                and v.requests
                and v.entered == set(members)
            )
        )
        began = time.monotonic()
        await vm.until(lambda: vm.first(w.Boundary, began))

    async def share(vm, request):
        vm.grant([request])
        vm.rearrange(Arrangement(everybody, (request.request_id,)))
        await until_sharing(vm, everybody)

    async def script():
        async with bench.Vm(3, timeout_s) as vm:
            pids = [slot.child.process.pid for slot in vm.workers.slots]
            await share(vm, requests[0])
            # Words of an old generation are refused by a worker, too.
            vm.workers.slots[0].send(w.Part(view(vm).generation - 1))
            # From some workers to others, who are free before the image is.
            for members in ((0, 1), (2,), (0, 1), everybody):
                vm.rearrange(Arrangement(members, (requests[0].request_id,)))
                await until_sharing(vm, members)
            vm.kill(0)
            await until_sharing(vm, (1, 2))
            await vm.until(lambda: len(vm.frames) == 1 and vm.all_ready())
            await share(vm, requests[1])  # with the replacement
            vm.kill(2, signal.SIGSTOP)
            began = time.monotonic()
            await until_sharing(vm, (0, 1))
            assert time.monotonic() - began < timeout_s + 5
            await vm.until(lambda: len(vm.frames) == 2)
            assert vm.workers.slots[1].child.process.pid == pids[1]
            return vm

    vm = asyncio.run(script())
    assert not [message for message in vm.committed if isinstance(message, m.HandBack)]
    steps = sum(e.message.denoise_steps for e in vm.events if isinstance(e.message, w.Boundary))
    # For each failure one step more at most; or one less, whose leader died before it said so.
    assert abs(steps - 200) <= 2
    for request in requests:
        same_as_alone(policy, vm.frames[request.request_id], request)
