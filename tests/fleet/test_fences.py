"""Which fences a Hello may name after a restart."""

from spotlightd.fleet.fences import Fences
from spotlightd.fleet.scheduler import Scheduler
from spotlightd.wire.messages import HeldLease
from tests.fleet.test_scheduler import make_request


def test_fences_rise_and_carry_the_epoch():
    fences = Fences(3)
    first, second = fences.next(), fences.next()
    assert first < second and first >> 32 == second >> 32 == 3


def test_a_lease_that_the_store_does_not_know_yet_may_go_on():
    fences = Fences(3)
    fences.restored(2 << 32 | 5)
    assert fences.claim(2 << 32 | 5, latest=2 << 32 | 5)
    assert fences.claim(2 << 32 | 9, latest=2 << 32 | 5)


def test_a_fence_that_nobody_gave_is_refused():
    fences = Fences(3)
    fences.restored(2 << 32 | 5)
    assert not fences.claim(2 << 32 | 4, latest=2 << 32 | 5), "superseded"
    assert not fences.claim(3 << 32 | 1, latest=0), "of this epoch, and never given out"
    assert not fences.claim(2**53 - 1, latest=0), "it would make every later grant stale"
    assert not fences.claim(2 << 32 | 5, latest=0), "another request's"
    assert fences.claim(2 << 32 | 7, latest=0)
    assert not fences.claim(2 << 32 | 7, latest=0), "claimed for another request already"


def test_a_hello_with_an_invented_fence_does_not_make_later_grants_stale():
    scheduler = Scheduler(epoch=2, lease_s=10.0, attempts=2)
    scheduler.add([make_request("r")])
    invented = HeldLease("r", 2**53 - 1)
    assert scheduler.join("a", "agent", [invented], 0.0) == [invented]
    scheduler.give("a", 1, [0])
    (grant,) = scheduler.dispatch(lambda _: True, 0.0)
    assert grant.fence >> 32 == 2
    scheduler.validate()


def test_only_the_first_lease_is_the_stores_business():
    scheduler = Scheduler(epoch=1, lease_s=10.0, attempts=2)
    for agent_id in ("a", "b"):
        scheduler.join(agent_id, "agent", (), 0.0)
    scheduler.add([make_request("r1"), make_request("r2")])
    scheduler.give("a", 2, [0])
    scheduler.dispatch(lambda _: True, 0.0)
    scheduler.give("b", 1, [0])
    (backup,) = scheduler.dispatch(lambda _: True, 0.0)
    request_id = backup.entry.request.request_id
    assert scheduler.holds("a", HeldLease(request_id, backup.entry.fence))
    assert not scheduler.holds("b", HeldLease(request_id, backup.fence))
    assert not scheduler.holds("a", HeldLease("unknown", 1))
