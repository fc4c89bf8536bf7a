"""The worker's side of pulling, under any order of events."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from spotlightd.wire.messages import Failed, HeldLease, Lease
from spotlightd.wire.pull import ACK_TIMEOUT_S, PullState
from spotlightd.wire.sampling import Request, SamplerSettings

SAMPLER = SamplerSettings((1.0, 0.0), "flow_sde", 0.7, (), 1.0, 32, 128)


def lease(name: str, fence: int, duration_s: float = 1e3) -> Lease:
    request = Request(name, "rollout", 0, "p", 'a "A"', "A", 1, 0, SAMPLER)
    return Lease(request, fence, duration_s)


def report(name: str, fence: int) -> Failed:
    return Failed(name, fence, "why", False, 0.0)


def test_credit_is_given_once():
    state = PullState(4)
    assert state.take_credit() == 4
    assert state.take_credit() == 0
    state.granted([lease("a", 1)])
    assert state.take_credit() == 0
    state.finished(report("a", 1), (), 0.0)
    assert state.take_credit() == 1


def test_scoring_does_not_keep_work_from_the_gpu_but_has_a_bound():
    state = PullState(2)
    state.take_credit()
    state.granted([lease("a", 1), lease("b", 2)])
    assert state.take_credit() == 0
    state.sampled("a")
    state.sampled("b")
    assert state.take_credit() == 2
    state.granted([lease("c", 3), lease("d", 4)])
    state.sampled("c")
    assert state.take_credit() == 0, "four are held, twice the capacity"
    state.finished(report("a", 1), (), 0.0)
    assert state.take_credit() == 1


def test_a_report_is_kept_until_it_is_acknowledged():
    state = PullState(1)
    state.granted([lease("a", 1)])
    assert state.finished(report("a", 1), (), now=0.0)
    assert state.due(now=1.0) == []
    assert [u.message.request_id for u in state.due(now=ACK_TIMEOUT_S)] == ["a"]
    assert state.due(now=ACK_TIMEOUT_S + 1) == []
    assert not state.acked("a", 2)
    assert state.acked("a", 1)
    assert state.resend(now=99.0) == []


def test_a_report_of_a_short_lease_is_sent_again_before_the_lease_runs_out():
    state = PullState(1)
    state.granted([lease("a", 1, duration_s=8.0)])
    state.finished(report("a", 1), (), now=0.0)
    assert state.due(now=3.9) == []
    assert len(state.due(now=4.0)) == 1
    assert state.due(now=7.9) == []


def test_hello_lists_work_and_unacknowledged_reports_and_voids_credit():
    state = PullState(3)
    state.take_credit()
    state.granted([lease("a", 1), lease("b", 2)])
    state.finished(report("a", 1), (), 0.0)
    assert set(state.hello()) == {HeldLease("a", 1), HeldLease("b", 2)}
    assert state.take_credit() == 2


def test_withdrawn_work_is_not_reported():
    state = PullState(2)
    state.granted([lease("a", 1)])
    assert state.withdrawn([HeldLease("a", 1), HeldLease("x", 9)]) == [HeldLease("a", 1)]
    assert not state.finished(report("a", 1), (), 0.0)


def test_a_newer_fence_replaces_an_older_one():
    state = PullState(2)
    state.granted([lease("a", 1)])
    assert len(state.granted([lease("a", 5)])) == 1
    assert state.granted([lease("a", 5)]) == []
    assert not state.finished(report("a", 1), (), 0.0)
    assert state.finished(report("a", 5), (), 0.0)


def test_a_draining_worker_gives_no_credit():
    state = PullState(2)
    state.draining = True
    assert state.take_credit() == 0


class AnyOrder(RuleBasedStateMachine):
    """A daemon that grants no more than it was given credit for."""

    def __init__(self) -> None:
        super().__init__()
        self.state = PullState(3)
        self.owed = 0
        self.fence = 0

    @rule()
    def give(self):
        self.owed += self.state.take_credit()

    @rule(name=st.sampled_from("abcdef"))
    def grant(self, name):
        if self.owed and name not in self.state.held and name not in self.state.unacked:
            self.fence += 1
            self.owed -= 1
            assert self.state.granted([lease(name, self.fence)])

    @rule(name=st.sampled_from("abcdef"))
    def sample(self, name):
        self.state.sampled(name)

    @rule(name=st.sampled_from("abcdef"))
    def finish(self, name):
        held = self.state.held.get(name)
        if held:
            assert self.state.finished(report(name, held.fence), (), 0.0)

    @rule(name=st.sampled_from("abcdef"))
    def ack(self, name):
        waiting = self.state.unacked.get(name)
        if waiting:
            assert self.state.acked(name, waiting.message.fence)

    @rule()
    def hello(self):
        self.owed = 0
        self.state.hello()

    @invariant()
    def holds(self):
        self.state.validate()
        assert len(self.state.held) - len(self.state.scoring) + self.state.promised <= 3
        assert len(self.state.held) + self.state.promised <= 6


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
