"""Membership in virtual time."""

import pytest

from spotlightd.fleet.membership import Member, Membership


@pytest.fixture
def fleet() -> Membership:
    made = Membership(suspect_s=6, lost_s=15, forget_s=100)
    made.hello(Member("a", "vm", "agent", 1, joined_at=0, last_seen=0))
    return made


def states(changes):
    return [(c.agent_id, c.state) for c in changes]


def test_silence_makes_suspect_then_lost_then_forgotten(fleet):
    assert states(fleet.tick(7)) == [("a", "suspect")]
    assert not fleet.may_lease("a")
    assert states(fleet.tick(16)) == [("a", "lost")]
    fleet.validate()
    assert fleet.present("a") is None
    assert states(fleet.tick(101)) == [("a", "forgotten")]
    assert fleet.members == {}


def test_patience_lasts_to_the_end(fleet):
    assert fleet.tick(6) == [] and fleet.may_lease("a")
    fleet.tick(7)
    assert fleet.tick(15) == []
    fleet.tick(16)
    assert fleet.tick(100) == [] and "a" in fleet.members


def test_who_says_goodbye_is_gone_and_forgotten_later(fleet):
    fleet.members["a"].ready_versions = (3,)
    change = fleet.leave("a", "goodbye", 5)
    assert (change.state, fleet.members["a"].state, fleet.members["a"].left_at) == (
        "gone", "gone", 5,
    )  # fmt: skip
    assert fleet.members["a"].ready_versions == () and fleet.present("a") is None
    assert fleet.leave("a", "again", 6) is None and fleet.tick(50) == []
    assert states(fleet.tick(101)) == [("a", "forgotten")]


def test_hello_again_says_what_was_before(fleet):
    fleet.tick(7)
    change = fleet.hello(Member("a", "vm", "agent", 1, joined_at=8, last_seen=8))
    assert (change.state, "suspect" in change.reason) == ("live", True)
    assert fleet.may_lease("a") and not fleet.members["a"].chunk_endpoint


def test_any_message_clears_suspicion(fleet):
    fleet.tick(7)
    change = fleet.seen("a", 8)
    assert change is not None and change.state == "live"
    assert fleet.may_lease("a") and fleet.tick(13) == []


def test_a_lost_agent_is_not_revived_by_a_late_message(fleet):
    fleet.tick(16)
    assert fleet.seen("a", 17) is None
    assert fleet.members["a"].state == "lost"


def test_draining_agents_get_nothing_but_are_present(fleet):
    assert fleet.drain("a", "notice").state == "draining"
    assert fleet.drain("a", "again") is None
    assert not fleet.may_lease("a") and fleet.present("a")
    assert states(fleet.tick(16)) == [("a", "lost")]


def test_a_trainer_is_not_judged_by_silence(fleet):
    fleet.hello(Member("t", "trainer", "trainer", 1, joined_at=0, last_seen=0))
    assert [c.agent_id for c in fleet.tick(50)] == ["a"]


def test_two_machines_of_one_name_are_two_members(fleet):
    fleet.hello(Member("b", "vm", "agent", 1, joined_at=1, last_seen=1))
    assert len(fleet.members) == 2
