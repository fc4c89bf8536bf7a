"""The receiver's decisions under any failures of its peers."""

import hypothesis.strategies as st
from hypothesis import given, settings

from spotlightd.weights.fetch import Ask, DropPeer, Fetch


def asks(decisions):
    return [(d.peer_id, d.digest) for d in decisions if isinstance(d, Ask)]


def test_chunks_are_spread_over_peers():
    fetch = Fetch([f"c{i}" for i in range(6)])
    asked = asks(fetch.add_peers(["a", "b", "daemon"], 0.0))
    assert [peer for peer, _ in asked] == ["a", "b", "daemon"] * 2


def test_a_peer_that_serves_a_bad_chunk_is_named_and_dropped():
    fetch = Fetch(["c0", "c1"])
    fetch.add_peers(["a", "b"], 0.0)
    decisions = fetch.received("a", "c0", good=False, now=1.0)
    assert decisions[0] == DropPeer("a", "c0", "served a bad chunk")
    assert asks(decisions) == [("b", "c0")]


def test_a_silent_peers_chunks_are_asked_of_others():
    fetch = Fetch(["c0", "c1"])
    fetch.add_peers(["a", "b"], 0.0)
    fetch.received("b", "c1", good=True, now=1.0)
    decisions = fetch.tick(now=20.0, timeout_s=10.0)
    assert asks(decisions) == [("b", "c0")]
    assert not fetch.stuck


def test_without_peers_it_is_stuck():
    fetch = Fetch(["c0"])
    fetch.add_peers(["a"], 0.0)
    fetch.refused("a", "c0", 1.0)
    assert fetch.stuck and not fetch.done


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_with_one_honest_peer_it_always_completes(data):
    fetch = Fetch([f"c{i}" for i in range(data.draw(st.integers(1, 15)))])
    waiting = asks(fetch.add_peers(["x", "y", "honest"], 0.0))
    now = 0.0
    for _ in range(400):
        fetch.validate()
        if fetch.done:
            break
        if not waiting:
            now += 11.0
            waiting = asks(fetch.tick(now, 10.0))
            continue
        peer, digest = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
        kinds = ["good"] if peer == "honest" else ["good", "bad", "refuse", "silent"]
        kind = data.draw(st.sampled_from(kinds))
        if kind == "silent":
            continue
        if kind == "refuse":
            waiting += asks(fetch.refused(peer, digest, now))
        else:
            waiting += asks(fetch.received(peer, digest, kind == "good", now))
        waiting = [(p, d) for p, d in waiting if p in fetch.peers]
    assert fetch.done
