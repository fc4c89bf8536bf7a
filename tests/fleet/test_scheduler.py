"""The scheduler in virtual time: leases, fences and queues under any order of events."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from spotlightd.fleet.scheduler import Scheduler
from spotlightd.wire.messages import HeldLease
from spotlightd.wire.sampling import Request, RequestKind, SamplerSettings

SAMPLER = SamplerSettings((1.0, 0.5, 0.0), "flow_sde", 0.7, (0,), 1.0, 32, 128)


def make_request(name: str, kind: RequestKind = "rollout", version: int = 0) -> Request:
    return Request(name, kind, 0, "p", 'a sign "A"', "A", 1, version, SAMPLER)


@pytest.fixture
def scheduler() -> Scheduler:
    made = Scheduler(epoch=3, lease_s=10.0, attempts=2)
    made.join("a", "agent", (), now=0.0)
    made.join("b", "agent", (), now=0.0)
    return made


def lease_one(scheduler: Scheduler, agent_id: str, now: float = 0.0, version: int = 0):
    scheduler.give(agent_id, 1, [version])
    (grant,) = scheduler.dispatch([agent_id].__contains__, now)
    scheduler.validate()
    return grant.entry.request.request_id, grant.entry.fence


def test_rollouts_go_before_evaluations_before_explorations(scheduler):
    scheduler.add([make_request("x", "explore"), make_request("e", "evaluate"), make_request("r")])
    assert [lease_one(scheduler, "a")[0] for _ in range(3)] == ["r", "e", "x"]


def test_resumed_goes_before_fresh(scheduler):
    scheduler.add([make_request("r1"), make_request("r2")])
    request_id, fence = lease_one(scheduler, "a")
    scheduler.progress_committed(request_id, fence, 4, "blob")
    assert scheduler.leave("a") == ["r1"]
    scheduler.give("b", 1, [0])
    (grant,) = scheduler.dispatch(["b"].__contains__, 0.0)
    assert (grant.entry.request.request_id, grant.entry.progress_step) == ("r1", 4)
    assert grant.reason == "resumed rollout"


def test_given_up_goes_before_what_nobody_has_had(scheduler):
    scheduler.add([make_request("r1"), make_request("r2"), make_request("r3")])
    request_id, fence = lease_one(scheduler, "a")
    assert scheduler.hand_back("a", [HeldLease(request_id, fence)]) == ["r1"]
    assert [lease_one(scheduler, "b")[0] for _ in range(3)] == ["r1", "r2", "r3"]


def test_what_failed_goes_behind_the_others(scheduler):
    scheduler.add([make_request("r1"), make_request("r2")])
    request_id, fence = lease_one(scheduler, "a")
    assert scheduler.failed(request_id, fence, final=False) == "again"
    assert [lease_one(scheduler, "a")[0] for _ in range(2)] == ["r2", "r1"]


def test_leases_are_dealt_in_turn(scheduler):
    scheduler.add([make_request(f"r{i}") for i in range(4)])
    scheduler.give("a", 4, [0])
    scheduler.give("b", 4, [0])
    grants = scheduler.dispatch(["a", "b"].__contains__, 0.0)
    assert [g.agent_id for g in grants] == ["a", "b", "a", "b"]


def test_a_worker_gets_only_versions_that_it_can_sample(scheduler):
    scheduler.add([make_request("r", version=2)])
    scheduler.give("a", 1, [1])
    assert scheduler.dispatch(["a"].__contains__, 0.0) == []
    scheduler.give("a", 0, [1, 2])
    assert len(scheduler.dispatch(["a"].__contains__, 0.0)) == 1


def test_the_trainer_explores_nothing(scheduler):
    scheduler.join("t", "trainer", (), now=0.0)
    scheduler.add([make_request("x", "explore")])
    scheduler.give("t", 1, [0])
    assert scheduler.dispatch(["t"].__contains__, 0.0) == []


def test_expired_but_not_handed_on_may_still_commit(scheduler):
    scheduler.add([make_request("r")])
    request_id, fence = lease_one(scheduler, "a")
    assert scheduler.tick(now=11.0) == ["r"]
    assert scheduler.result(request_id, fence) == "committed"
    scheduler.settled(request_id)
    scheduler.validate()
    assert scheduler.entries["r"].state == "done"


def test_a_superseded_holder_is_stale(scheduler):
    scheduler.add([make_request("r")])
    request_id, old = lease_one(scheduler, "a")
    scheduler.tick(now=11.0)
    _, new = lease_one(scheduler, "b", now=11.0)
    assert new > old
    assert scheduler.result(request_id, old) == "stale"
    assert scheduler.progress(request_id, old, 11.0) == "stale"
    assert scheduler.result(request_id, new) == "committed"


def test_progress_extends_a_lease(scheduler):
    scheduler.add([make_request("r")])
    request_id, fence = lease_one(scheduler, "a")
    assert scheduler.progress(request_id, fence, now=9.0) == "committed"
    assert scheduler.tick(now=18.0) == []


def test_a_result_sent_twice_is_repeated_not_stale(scheduler):
    scheduler.add([make_request("r")])
    request_id, fence = lease_one(scheduler, "a")
    assert scheduler.result(request_id, fence) == "committed"
    assert scheduler.result(request_id, fence) == "repeated"
    scheduler.settled(request_id)
    assert scheduler.result(request_id, fence) == "repeated"


def test_a_refused_commit_of_a_gone_holder_is_queued_again(scheduler):
    scheduler.add([make_request("r")])
    request_id, fence = lease_one(scheduler, "a")
    scheduler.result(request_id, fence)
    scheduler.leave("a")
    scheduler.commit_failed(request_id)
    scheduler.validate()
    assert scheduler.entries["r"].state == "queued"


def test_failures_are_given_up_after_the_allowed_attempts(scheduler):
    scheduler.add([make_request("r")])
    request_id, fence = lease_one(scheduler, "a")
    assert scheduler.failed(request_id, fence, final=False) == "again"
    request_id, fence = lease_one(scheduler, "b")
    assert scheduler.failed(request_id, fence, final=False) == "given_up"
    assert scheduler.failed(request_id, fence, final=False) is None


def test_hello_after_a_restart_takes_leases_up_again():
    old = Scheduler(epoch=1, lease_s=10.0, attempts=2)
    old.join("a", "agent", (), 0.0)
    old.add([make_request("r"), make_request("gone")])
    request_id, fence = lease_one(old, "a")
    new = Scheduler(epoch=2, lease_s=10.0, attempts=2)
    new.add([make_request("r")])
    held = [HeldLease(request_id, fence), HeldLease("gone", 7)]
    assert new.join("a", "agent", held, 0.0) == [HeldLease("gone", 7)]
    new.validate()
    assert new.result(request_id, fence) == "committed"


def test_a_process_that_restarted_without_its_leases_loses_them(scheduler):
    scheduler.add([make_request("r")])
    lease_one(scheduler, "a")
    scheduler.join("a", "agent", (), 0.0)
    scheduler.validate()
    assert scheduler.entries["r"].state == "queued"


def test_withdrawn_work_is_stopped_at_its_holder(scheduler):
    scheduler.add([make_request("x1", "explore"), make_request("x2", "explore")])
    request_id, fence = lease_one(scheduler, "a")
    assert scheduler.withdraw(["x1", "x2"]) == {"a": [HeldLease(request_id, fence)]}
    scheduler.validate()
    assert scheduler.result(request_id, fence) == "stale"


class AnyOrder(RuleBasedStateMachine):
    """Random histories: `validate` holds after every event, and a request commits at most once."""

    names = Bundle("names")

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(epoch=1, lease_s=5.0, attempts=3)
        self.now = 0.0
        self.granted: list[tuple[str, str, int]] = []
        self.commits: dict[str, int] = {}

    @rule(target=names, number=st.integers(0, 20), kind=st.sampled_from(["rollout", "explore"]))
    def add(self, number, kind):
        name = f"{kind}{number}"
        self.scheduler.add([make_request(name, kind)])
        return name

    @rule(agent=st.sampled_from("abc"), data=st.data())
    def join(self, agent, data):
        """It says that it still holds any of what it was ever granted."""
        known = [HeldLease(r, fence) for a, r, fence in self.granted if a == agent]
        held = data.draw(st.lists(st.sampled_from(known), unique=True)) if known else []
        latest = {lease.request_id: lease for lease in held}
        self.scheduler.join(agent, "agent", list(latest.values()), self.now)

    @rule(agent=st.sampled_from("abc"))
    def leave(self, agent):
        self.scheduler.leave(agent)

    @rule(agent=st.sampled_from("abc"), credit=st.integers(0, 4))
    def give(self, agent, credit):
        self.scheduler.give(agent, credit, [0])
        for grant in self.scheduler.dispatch("abc".__contains__, self.now):
            request_id = grant.entry.request.request_id
            self.granted.append((grant.agent_id, request_id, grant.fence))

    @rule()
    def refuse_a_commit(self):
        """The disk was full: whatever is on its way to it is reported again."""
        for _, request_id, fence in self.granted:
            if self.scheduler.result(request_id, fence) == "committed":
                self.scheduler.validate()
                self.scheduler.commit_failed(request_id)
                return

    @rule(seconds=st.floats(0, 8))
    def wait(self, seconds):
        self.now += seconds
        self.scheduler.tick(self.now)

    @rule(data=st.data(), event=st.sampled_from(["result", "progress", "failed", "hand_back"]))
    def report(self, data, event):
        if not self.granted:
            return
        agent, request_id, fence = data.draw(st.sampled_from(self.granted))
        if event == "result":
            if self.scheduler.result(request_id, fence) == "committed":
                self.commits[request_id] = self.commits.get(request_id, 0) + 1
                self.scheduler.settled(request_id)
        elif event == "progress":
            self.scheduler.progress(request_id, fence, self.now)
            self.scheduler.progress_committed(request_id, fence, 1, "blob")
        elif event == "failed":
            self.scheduler.failed(request_id, fence, final=False)
        else:
            self.scheduler.hand_back(agent, [HeldLease(request_id, fence)])

    @rule(name=names)
    def withdraw(self, name):
        self.scheduler.withdraw([name])

    @invariant()
    def holds(self):
        self.scheduler.validate()
        assert all(count == 1 for count in self.commits.values())


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
