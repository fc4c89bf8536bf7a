"""Membership in virtual time."""

import random

import pytest

from spotlightd.fleet.looks import Looks
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


def test_who_is_lost_is_still_known_when_it_is_told_however_late_the_look(fleet):
    (lost,) = fleet.tick(1e6)
    assert lost.state == "lost" and lost.agent_id in fleet.members
    fleet.validate()
    (forgotten,) = fleet.tick(1e6)
    assert forgotten.state == "forgotten" and lost.agent_id not in fleet.members
    fleet.validate()


def test_two_machines_of_one_name_are_two_members(fleet):
    fleet.hello(Member("b", "vm", "agent", 1, joined_at=1, last_seen=1))
    assert len(fleet.members) == 2


def test_a_look_now_and_then_finds_what_a_look_at_all_would():
    rng = random.Random(1)
    kept, seen = Membership(4, 10, 50), {}
    states_of = {}
    for tick in range(4000):
        now = tick * 0.25
        name = f"vm{rng.randrange(12)}"
        if name not in kept.members or (kept.present(name) is None and rng.random() < 0.2):
            kept.hello(Member(name, "vm", "agent", 1, now, now))
            seen[name], states_of[name] = now, "live"
        elif rng.random() < 0.3 and kept.present(name):
            kept.seen(name, now)
            seen[name] = now
            states_of[name] = "draining" if states_of[name] == "draining" else "live"
        elif rng.random() < 0.02 and kept.drain(name, "test"):
            states_of[name] = "draining"
        kept.tick(now)
        kept.validate()
        for agent_id, state in list(states_of.items()):
            silence = now - seen[agent_id]
            if state in ("lost", "forgotten"):
                states_of[agent_id] = "forgotten" if silence > 50 else "lost"
            elif silence > 10:
                states_of[agent_id] = "lost"
            elif silence > 4 and state == "live":
                states_of[agent_id] = "suspect"
        wanted = {name: state for name, state in states_of.items() if state != "forgotten"}
        assert {name: member.state for name, member in kept.members.items()} == wanted
    assert len(kept._looks) < 100, "void names do not pile up"


def test_looks_come_by_the_second_each_once():
    looks = Looks()
    for name, due in (("a", 7.9), ("b", 7.2), ("c", 12.0), ("d", 7.0)):
        looks.at(name, due)
    looks.at("b", 12.5)
    looks.forget("d")
    assert list(looks.pop(6.9)) == []
    found = []
    for name in looks.pop(7.0):
        found.append(name)
        if len(found) < 3:
            looks.at(f"{name}'", 6.0)
    assert found == ["a", "a'", "a''"] and len(looks) == 2
    looks.validate("c", 12.0)
    with pytest.raises(AssertionError):
        looks.validate("c", 11.9)
    assert list(looks.pop(20.0)) == ["c", "b"] and len(looks) == 0
