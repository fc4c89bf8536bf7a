"""The receiver's decisions: whom it asks for what, and that any failures of peers are survived."""

from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from spotlightd.weights.fetch import (
    DAEMON,
    FAR,
    NEAR,
    Ask,
    DropPeer,
    Fetch,
    FindPeers,
    Source,
)

ALL4 = 0b1111


def asks(decisions):
    return [(d.peer_id, d.chunk) for d in decisions if isinstance(d, Ask)]


def start(chunks, *sources, now=0.0, **options):
    fetch = Fetch((1 << chunks) - 1, chunks, Random(1), **options)
    return fetch, asks(fetch.add_peers(sources, now))


def complete(name, rank=NEAR):
    return Source(name, rank, complete=True)


def test_work_is_spread_before_windows_are_filled():
    _, asked = start(6, complete("a"), complete("b"), complete("c"), in_flight=6)
    assert sorted(peer for peer, _ in asked) == ["a", "a", "b", "b", "c", "c"]
    assert sorted(chunk for _, chunk in asked) == list(range(6))


def test_the_rarest_chunk_goes_first():
    fetch, _ = start(4, Source("a", NEAR), Source("b", NEAR), Source("c", NEAR), in_flight=1)
    fetch.peers["a"].busy_until = fetch.peers["b"].busy_until = 9.0
    fetch.has("a", 0b0111, 0.0)
    fetch.has("b", 0b0011, 0.0)
    # c has all; 3 is with c alone, 2 with two peers.
    assert asks(fetch.has("c", ALL4, 0.0)) == [("c", 3)]
    assert asks(fetch.received("c", 3, True, 0.1)) == [("c", 2)]
    fetch.validate()


def test_far_peers_and_the_daemon_are_asked_only_for_what_nobody_nearer_has():
    fetch, asked = start(
        3, Source("near", NEAR), complete("daemon", DAEMON), Source("far", FAR), in_flight=1
    )
    assert [peer for peer, _ in asked] == ["daemon"]
    (chunk,) = [chunk for _, chunk in asked]
    rest = [c for c in range(3) if c != chunk]
    fetch.has("near", 1 << rest[0], 0.1)
    fetch.has("far", 1 << rest[1] | 1 << rest[0], 0.1)
    assert asks(fetch.received("daemon", chunk, True, 0.2)) == [("near", rest[0])]
    assert asks(fetch.received("near", rest[0], True, 0.3)) == [("far", rest[1])]


def test_a_busy_peer_is_left_alone_for_longer_each_time():
    fetch, _ = start(1, complete("a"))
    waits, now = [], 0.0
    for _ in range(5):
        assert fetch.refused("a", 0, "busy", now) == []
        waits.append(fetch.peers["a"].busy_until - now)
        now = fetch.peers["a"].busy_until
        assert asks(fetch.retry("a", now)) == [("a", 0)]
    assert waits == sorted(waits) and waits[4] > 8 * waits[0]


def test_while_a_near_peer_is_busy_a_far_one_may_be_asked():
    fetch, asked = start(1, complete("near"), complete("far", FAR))
    assert asked == [("near", 0)]
    assert asks(fetch.refused("near", 0, "busy", 0.1)) == [("far", 0)]


def test_what_the_daemon_gave_to_another_is_not_asked_of_it_again():
    fetch, asked = start(2, complete("daemon", DAEMON), in_flight=1)
    (_, chunk) = asked[0]
    assert asks(fetch.refused("daemon", chunk, "elsewhere", 0.1)) == [("daemon", 1 - chunk)]
    fetch.received("daemon", 1 - chunk, True, 0.2)
    # Nobody turns up with it: the receiver is starved, and the daemon is asked for all again.
    (found,) = fetch.tick(5.0, 10.0)
    assert isinstance(found, FindPeers) and found.starved
    assert asks(fetch.add_peers([complete("daemon", DAEMON)], 5.1)) == [("daemon", chunk)]


def test_a_peer_that_serves_a_bad_chunk_is_named_and_never_taken_back():
    fetch, asked = start(2, complete("a"), complete("b"))
    (bad,) = [chunk for peer, chunk in asked if peer == "a"]
    decisions = fetch.received("a", bad, good=False, now=1.0)
    assert decisions[0] == DropPeer("a", bad, "served a bad chunk")
    assert asks(decisions) == [("b", bad)]
    assert fetch.add_peers([complete("a")], 2.0) == [] and "a" not in fetch.peers


def test_a_silent_peers_chunks_are_asked_of_others():
    fetch, asked = start(4, complete("a"), complete("b"))
    for peer, chunk in asked:
        if peer == "b":
            fetch.received("b", chunk, True, 1.0)
    assert {peer for peer, _ in asks(fetch.tick(now=20.0, timeout_s=10.0))} == {"b"}
    assert not fetch.stuck


def test_the_last_late_chunk_is_asked_of_a_second_peer():
    fetch, asked = start(1, complete("a"), complete("b"))
    assert asked == [("a", 0)]
    assert asks(fetch.tick(0.1, 10.0)) == []
    assert asks(fetch.tick(2.0, 10.0)) == [("b", 0)]
    fetch.validate()
    fetch.received("b", 0, True, 2.1)
    fetch.received("a", 0, True, 2.2)
    assert fetch.done and fetch.fetched_from == {"b": 1}


def test_what_was_asked_of_a_peer_that_hung_up_is_asked_again():
    fetch, asked = start(1, complete("a"))
    assert asked == [("a", 0)]
    assert fetch.disconnected("a", 1.0) == []
    assert asks(fetch.tick(1.5, 10.0)) == [("a", 0)]


def test_a_refused_ticket_ends_with_a_search_for_peers():
    fetch, asked = start(1, complete("a"))
    assert asked == [("a", 0)]
    assert fetch.refused("a", 0, "ticket", 1.0) == [DropPeer("a", None, "refuses our ticket")]
    assert FindPeers(True, "no peer is left") in fetch.tick(3.0, 10.0)
    assert asks(fetch.add_peers([complete("a")], 3.1)) == [("a", 0)], "it may have a new ticket"


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_with_one_honest_peer_it_always_completes(data):
    chunks = data.draw(st.integers(1, 15))
    fetch, waiting = start(chunks, complete("x"), complete("y", FAR), complete("honest", DAEMON))
    now = 0.0
    for _ in range(600):
        fetch.validate()
        if fetch.done:
            break
        if not waiting:
            now += 11.0
            waiting = asks(fetch.tick(now, 10.0))
            continue
        peer, chunk = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
        kinds = ["good"] if peer == "honest" else ["good", "bad", "unknown", "busy", "silent"]
        kind = data.draw(st.sampled_from(kinds))
        if kind == "silent":
            continue
        if kind in ("unknown", "busy"):
            waiting += asks(fetch.refused(peer, chunk, kind, now))
        else:
            waiting += asks(fetch.received(peer, chunk, kind == "good", now))
        waiting = [(p, c) for p, c in waiting if fetch.owes(p, c)]
    assert fetch.done


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 255)), max_size=30))
@settings(deadline=None)
def test_availability_is_counted_whatever_peers_gain_and_lose(news):
    fetch, _ = start(8, Source("a", NEAR), Source("b", FAR), Source("c", DAEMON))
    for peer, have in news:
        fetch.has(peer, have, 0.0)
        fetch.validate()


@pytest.mark.parametrize("peers, most", [(1, 4), (2, 4), (4, 2), (8, 1), (20, 1)])
def test_with_more_peers_each_owes_less(peers, most):
    fetch, _ = start(100, *(complete(f"p{i}") for i in range(peers)), in_flight=8)
    assert max(len(peer.owed) for peer in fetch.peers.values()) == most
    assert fetch.owing == min(8, peers * most)
