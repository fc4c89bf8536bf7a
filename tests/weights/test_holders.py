"""Whom a receiver is pointed to."""

from collections import Counter
from random import Random

import hypothesis.strategies as st
from hypothesis import given, settings

from spotlightd.weights.holders import FAR_PEERS, NEAR_PEERS, SEEDS, Holders

KEY = ("adapter", 1)
MOST = NEAR_PEERS + FAR_PEERS


def fleet(sizes):
    holders = Holders(Random(0))
    for zone, size in sizes.items():
        for number in range(size):
            agent = f"{zone}{number}"
            holders.joined(agent, zone)
            holders.has(KEY, agent, 1, complete=False)
    holders.validate()
    return holders


def test_most_peers_are_of_the_own_zone():
    holders = fleet({"a": 40, "b": 40})
    pointed = holders.point(KEY, "a0")
    assert len(pointed.near) == NEAR_PEERS and len(pointed.far) == FAR_PEERS
    assert all(peer.startswith("a") and peer != "a0" for peer in pointed.near)
    assert all(peer.startswith("b") for peer in pointed.far)


def test_a_lonely_zone_is_filled_up_from_others():
    pointed = fleet({"a": 2, "b": 40}).point(KEY, "a0")
    assert pointed.near == ("a1",) and len(pointed.far) == MOST - 1


def test_a_small_fleet_knows_everybody():
    holders = fleet({"a": 5})
    assert sorted(holders.point(KEY, "a0").near) == ["a1", "a2", "a3", "a4"]


def test_load_is_spread():
    holders = fleet({"a": 200})
    named = Counter(peer for i in range(200) for peer in holders.point(KEY, f"a{i}").near)
    assert len(named) == 200 and max(named.values()) < 4 * MOST


def test_the_daemon_is_named_to_a_few_who_know_one_another_and_to_the_starved():
    holders = fleet({"a": 200})
    holders.choose_seeds(KEY, [f"a{i}" for i in range(200)])
    seeds = set(holders.seeds[KEY])
    assert len(seeds) == SEEDS
    for i in range(200):
        pointed = holders.point(KEY, f"a{i}")
        assert pointed.daemon == (f"a{i}" in seeds), pointed.reason
        if pointed.daemon:
            assert seeds - {f"a{i}"} <= set(pointed.near)
    other = next(f"a{i}" for i in range(200) if f"a{i}" not in seeds)
    assert holders.point(KEY, other, starved=True).daemon


def test_a_seed_that_is_complete_or_gone_makes_room_for_another():
    holders = fleet({"a": 50})
    holders.choose_seeds(KEY, [f"a{i}" for i in range(50)])
    first, second, *_ = sorted(holders.seeds[KEY])
    holders.has(KEY, first, 9, complete=True)
    holders.left(second)
    holders.validate()
    others = [f"a{i}" for i in range(50) if f"a{i}" not in {first, second, *holders.seeds[KEY]}]
    assert [holders.point(KEY, agent).daemon for agent in others[:3]] == [True, True, False]


def test_what_a_heartbeat_does_not_list_is_gone():
    holders = fleet({"a": 2})
    holders.told("a1", {})
    assert holders.point(KEY, "a0").near == ()


def test_two_reports_and_a_peer_is_named_no_more_one_is_not_enough():
    holders = fleet({"a": 4})
    assert not holders.reported("a3", "a0")
    assert not holders.reported("a3", "a0"), "the same one again"
    assert not holders.reported("a3", "a3")
    assert "a3" in holders.point(KEY, "a1").near
    assert holders.reported("a3", "a1")
    holders.has(KEY, "a3", 5, complete=True)
    assert "a3" not in holders.point(KEY, "a0").near
    holders.validate()


EVENTS = st.tuples(
    st.sampled_from(["join", "leave", "has", "all", "told", "point", "starved", "report"]),
    st.integers(0, 5),
    st.integers(0, 5),
)


@given(st.lists(EVENTS, max_size=60))
@settings(deadline=None)
def test_any_order_of_events_keeps_its_books(events):
    holders = Holders(Random(0))
    for what, one, two in events:
        agent, other = f"vm{one}", f"vm{two}"
        match what:
            case "join":
                holders.joined(agent, f"zone{two % 2}")
            case "leave":
                holders.left(agent)
            case "has" | "all":
                holders.has(KEY, agent, two, complete=what == "all")
            case "told":
                holders.told(agent, {KEY: 1} if two else {})
            case "point" | "starved":
                pointed = holders.point(KEY, agent, what == "starved")
                named = [*pointed.near, *pointed.far]
                assert agent not in named and len(named) == len(set(named))
                assert pointed.daemon or what == "point"
            case "report":
                holders.reported(agent, other)
        holders.validate()
