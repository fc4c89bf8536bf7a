"""The worker's loop without a process: what it hands over at which step."""

from collections import deque

import pytest

from agent.worker import Worker
from spotlightd.dit.trajectory import decode_trajectory
from spotlightd.models import EMBEDDED_DIR
from spotlightd.wire import worker as w
from spotlightd.wire.messages import Lease

ALPHA, RANK = 8.0, 4


class ScriptedChannel:
    """The agent's end: hands out messages in order, lets the worker step in between, and ends."""

    def __init__(self, arrivals):
        self.arrivals = deque(arrivals)
        """A message with its frames, or None: nothing has arrived, take a step."""
        self.sent = []

    def receive(self, timeout_s=None):
        return self.arrivals.popleft() if self.arrivals else (w.Exit(), [])

    def send(self, message, frames=()):
        self.sent.append((message, [bytes(frame) for frame in frames]))

    def all(self, kind):
        return [message for message, _ in self.sent if isinstance(message, kind)]


@pytest.fixture
def run(policy):
    """Play arrivals to a worker of the embedded model; return its channel."""

    def play(commit_every, *arrivals):
        load = w.Load(str(EMBEDDED_DIR), RANK, ALPHA, "float32", 1, commit_every)
        adapter = str(policy[1] / "adapter.safetensors")
        channel = ScriptedChannel([(w.Bind(0, adapter), []), *arrivals])
        Worker(channel, load).run()
        return channel

    return play


@pytest.mark.parametrize("commit_every", [1, 2, 3])
def test_never_more_than_commit_every_steps_are_at_stake(run, make_request, commit_every):
    lease = Lease(make_request(1, steps=8), 7, 60.0)
    channel = run(commit_every, (w.Sample(lease), []), *[None] * 8)
    committed = done = 0
    at_stake = []
    for message, _ in channel.sent:
        if isinstance(message, w.Boundary):
            done += 1
            # SIGKILL now would redo these.
            at_stake.append(done - committed)
        elif isinstance(message, w.StepState):
            assert message.step_index == done
            committed = done
    assert max(at_stake) == commit_every
    assert channel.all(w.Finished)[0].request_id == lease.request.request_id


def test_the_bound_holds_after_resuming_in_the_middle(run, policy, make_request):
    request = make_request(1, steps=8)
    first = run(1, (w.Sample(Lease(request, 7, 60.0)), []), *[None] * 3)
    ((third, (state,)),) = [
        (message, frames)
        for message, frames in first.sent
        if isinstance(message, w.StepState) and message.step_index == 3
    ]
    resumed = Lease(request, 8, 60.0, resume_step=3)
    second = run(2, (w.Sample(resumed, third.frames), [state]), *[None] * 5)
    assert [state.step_index for state in second.all(w.StepState)] == [4, 6]


def test_a_notice_hands_over_every_step_that_was_done(run, policy, make_request):
    leases = [Lease(make_request(seed, steps=8), seed, 60.0) for seed in (1, 2)]
    late = (w.Sample(leases[1]), [])
    arrivals = [(w.Sample(leases[0]), []), None, None, None, late, None, (w.Flush(stop=True), [])]
    channel = run(0, *arrivals)
    states = {
        message.request_id: decode_trajectory(
            frames[0], lease.request, policy[0].latent_shape(32, 128)
        )
        for message, frames in channel.sent
        if isinstance(message, w.StepState)
        for lease in leases
        if lease.request.request_id == message.request_id
    }
    steps = {request_id: state.step_index for request_id, state in states.items()}
    assert steps == {"rollout-1": 4, "rollout-2": 1}
    (flushed,) = channel.all(w.Flushed)
    assert {held.request_id for held in flushed.held} == steps.keys()
