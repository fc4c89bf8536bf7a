"""Credit, and who holds what."""

import pytest

from spotlightd.fleet.pullers import Puller, Pullers


@pytest.fixture
def pullers() -> Pullers:
    made = Pullers()
    made["a"] = Puller("agent")
    return made


def test_credit_adds_up_and_the_hungry_are_those_who_have_some(pullers):
    assert not pullers["a"].idle and list(pullers.hungry) == []
    pullers.give("a", 0, [1])
    assert list(pullers.hungry) == [] and pullers["a"].versions == {1}
    pullers.give("a", 2, [1, 2])
    pullers.give("a", 1, [2])
    assert (pullers["a"].credit, pullers["a"].versions) == (3, {2})
    assert pullers["a"].idle and list(pullers.hungry) == ["a"]
    for _ in range(3):
        pullers.validate()
        pullers.spend("a")
    assert (pullers["a"].credit, list(pullers.hungry)) == (0, [])


def test_revoked_credit_is_none(pullers):
    pullers.give("a", 2, [1])
    pullers.revoke_credit("a")
    assert (pullers["a"].credit, list(pullers.hungry)) == (0, [])
    pullers.revoke_credit("nobody")


@pytest.mark.parametrize("what", ["held", "backups"])
def test_who_holds_something_is_not_idle(pullers, what):
    pullers.give("a", 1, [1])
    getattr(pullers["a"], what).add("r")
    assert not pullers["a"].idle
    assert pullers.holds("a", "r") == (what == "held")
    pullers.release("a", "r")
    assert pullers["a"].idle and not pullers.holds("a", "r")


def test_strangers_hold_nothing(pullers):
    assert not pullers.holds(None, "r") and not pullers.holds("nobody", "r")
    pullers.release(None, "r")
    pullers.give("nobody", 3, [1])
    assert "nobody" not in pullers


def test_who_leaves_takes_everything_along(pullers):
    pullers.give("a", 2, [1])
    assert pullers.leave("a").credit == 2
    assert list(pullers) == list(pullers.hungry) == []
    left = pullers.leave("a")
    assert (left.role, left.credit, left.held) == ("agent", 0, set())
