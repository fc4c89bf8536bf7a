"""The last wave of a phase: second leases of what is leased already; the first result counts."""

import pytest

from spotlightd.fleet.last_wave import worth_a_look
from spotlightd.fleet.scheduler import Scheduler
from spotlightd.wire.messages import HeldLease
from tests.fleet.test_scheduler import make_request

LEASE_S = 10.0


def anyone(_: str) -> bool:
    return True


@pytest.fixture
def wave() -> Scheduler:
    """Agent a works on the last four rollouts; b has room for four, and nothing to do."""
    scheduler = Scheduler(epoch=1, lease_s=LEASE_S, attempts=2)
    for agent_id in ("a", "b"):
        scheduler.join(agent_id, "agent", (), 0.0)
    scheduler.add([make_request(f"r{i}") for i in range(4)])
    scheduler.give("a", 4, [0])
    assert len(scheduler.dispatch(anyone, 0.0)) == 4
    scheduler.give("b", 4, [0])
    return scheduler


def back_up(scheduler: Scheduler, now: float = 0.0):
    grants = scheduler.dispatch(anyone, now)
    scheduler.validate()
    assert all(grant.backup for grant in grants)
    return grants


def test_an_idle_worker_gets_half_of_what_another_has_left_least_advanced_first(wave):
    wave.progress_committed("r0", wave.entries["r0"].fence, 5, "blob")
    wave.progress_committed("r2", wave.entries["r2"].fence, 5, "blob")
    grants = back_up(wave)
    assert [g.entry.request.request_id for g in grants] == ["r1", "r3"]
    assert all(g.agent_id == "b" and g.fence > g.entry.fence for g in grants)
    assert grants[0].reason == "backup of rollout at a"
    wave.give("b", 1, [0])
    assert back_up(wave) == []


def test_where_a_backup_comes_first_the_other_holder_is_stopped(wave):
    grant, *_ = back_up(wave)
    request_id, first = grant.entry.request.request_id, grant.entry.fence
    assert wave.result(request_id, grant.fence) == "committed"
    wave.validate()
    assert wave.settled(request_id) == {"a": [HeldLease(request_id, first)]}
    wave.validate()
    assert wave.result(request_id, grant.fence) == "repeated"
    assert wave.result(request_id, first) == "stale"


def test_where_the_first_holder_comes_first_the_backup_is_stopped(wave):
    grant, *_ = back_up(wave)
    request_id, first = grant.entry.request.request_id, grant.entry.fence
    assert wave.result(request_id, first) == "committed"
    assert wave.result(request_id, grant.fence) == "stale"
    assert wave.settled(request_id) == {"b": [HeldLease(request_id, grant.fence)]}
    wave.validate()


def test_a_backup_takes_the_place_of_a_lost_holder(wave):
    backed = {g.entry.request.request_id: g.fence for g in back_up(wave)}
    assert wave.leave("a") == sorted({"r0", "r1", "r2", "r3"} - backed.keys())
    wave.validate()
    for request_id, fence in backed.items():
        assert wave.entries[request_id].holder == "b"
        assert wave.result(request_id, fence) == "committed"


def test_a_lost_backup_changes_nothing(wave):
    grant, *_ = back_up(wave)
    request_id, first = grant.entry.request.request_id, grant.entry.fence
    assert wave.leave("b") == []
    wave.validate()
    assert wave.result(request_id, grant.fence) == "stale"
    assert wave.result(request_id, first) == "committed"


def test_a_holder_that_hangs_is_backed_up_whole_and_then_replaced(wave):
    assert len(back_up(wave, now=0.6 * LEASE_S)) == 4
    assert wave.tick(1.1 * LEASE_S) == []
    wave.validate()
    assert {entry.holder for entry in wave.entries.values()} == {"b"}
    assert sorted(wave.tick(2.1 * LEASE_S)) == ["r0", "r1", "r2", "r3"]


def test_step_commits_of_a_backup_are_refused(wave):
    grant, *_ = back_up(wave)
    assert wave.progress(grant.entry.request.request_id, grant.fence, 1.0) == "stale"


def test_a_failed_first_holder_leaves_the_work_to_its_backup(wave):
    grant, *_ = back_up(wave)
    request_id = grant.entry.request.request_id
    assert wave.failed(request_id, grant.entry.fence, final=True) is None
    wave.validate()
    assert wave.entries[request_id].holder == "b"
    assert wave.failed(request_id, grant.fence, final=False) == "given_up"


def test_a_failed_or_returned_backup_leaves_the_first_holder_alone(wave):
    one, two = back_up(wave)
    assert wave.failed(one.entry.request.request_id, one.fence, final=True) is None
    assert wave.hand_back("b", [HeldLease(two.entry.request.request_id, two.fence)]) == []
    wave.validate()
    assert {entry.holder for entry in wave.entries.values()} == {"a"}


def test_withdrawn_work_is_stopped_at_both_holders(wave):
    grant, *_ = back_up(wave)
    request_id = grant.entry.request.request_id
    stops = wave.withdraw([request_id])
    assert stops == {
        "a": [HeldLease(request_id, grant.entry.fence)],
        "b": [HeldLease(request_id, grant.fence)],
    }
    wave.validate()


def test_a_refused_commit_of_a_backup_may_come_from_either(wave):
    grant, *_ = back_up(wave)
    request_id, first = grant.entry.request.request_id, grant.entry.fence
    assert wave.result(request_id, grant.fence) == "committed"
    wave.commit_failed(request_id)
    wave.validate()
    assert wave.result(request_id, first) == "committed"
    assert wave.settled(request_id) == {"b": [HeldLease(request_id, grant.fence)]}


def test_exploration_is_never_backed_up_and_nothing_is_while_work_waits():
    scheduler = Scheduler(epoch=1, lease_s=LEASE_S, attempts=2)
    for agent_id in ("a", "b"):
        scheduler.join(agent_id, "agent", (), 0.0)
    scheduler.add([make_request("x1", "explore"), make_request("x2", "explore")])
    scheduler.give("a", 2, [0])
    scheduler.dispatch(anyone, 0.0)
    scheduler.give("b", 2, [0])
    assert back_up(scheduler) == []
    scheduler.add([make_request("r1", version=7)])
    assert scheduler.dispatch(anyone, 0.6 * LEASE_S) == []


def test_backups_can_be_switched_off(wave):
    wave.backup_leases = False
    assert back_up(wave, now=0.6 * LEASE_S) == []


def test_both_holders_go_on_after_a_daemon_that_did_not_note_the_backup(wave):
    """The store knows the first fence only; whoever says Hello first keeps the work."""
    grant, *_ = back_up(wave)
    request_id, first = grant.entry.request.request_id, grant.entry.fence
    second = Scheduler(epoch=2, lease_s=LEASE_S, attempts=2)
    entry = grant.entry
    entry.backup = None
    second.restore(entry, holder="a", deadline=5.0)
    assert second.join("b", "agent", [HeldLease(request_id, grant.fence)], 0.0) != []
    assert second.join("a", "agent", [HeldLease(request_id, first)], 0.0) == []
    second.validate()
    assert second.result(request_id, first) == "committed"


def test_a_holder_that_does_not_come_back_after_a_restart_is_replaced(wave):
    second = Scheduler(epoch=2, lease_s=LEASE_S, attempts=2)
    second.restore(wave.entries["r0"], holder="a", deadline=5.0)
    second.validate()
    second.join("b", "agent", (), 0.0)
    second.give("b", 1, [0])
    assert second.dispatch(anyone, 0.0) == []
    assert second.tick(5.1) == ["r0"]
    (grant,) = second.dispatch(anyone, 5.1)
    assert grant.agent_id == "b"


def test_only_whose_holder_has_more_or_is_late_is_looked_at(wave):
    entries = wave.entries
    assert worth_a_look(entries.values(), wave.pullers, 0.0) == list(entries.values())
    for request_id in ("r1", "r2", "r3"):
        wave.result(request_id, entries[request_id].fence)
        wave.settled(request_id)
    assert worth_a_look([entries["r0"]], wave.pullers, LEASE_S) == []
    assert worth_a_look([entries["r0"]], wave.pullers, LEASE_S + 0.1) == [entries["r0"]]
    assert back_up(wave) == [] and len(back_up(wave, LEASE_S)) == 1
