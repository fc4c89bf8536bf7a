"""The server's decisions: turns, bounds, the uplink's limit, news."""

import hypothesis.strategies as st
from hypothesis import given, settings

from spotlightd.weights.serve import Refuse, Send, Serving, Tell

SIZE = 1000


def test_above_its_places_a_server_is_busy():
    serving = Serving(places=2)
    assert serving.asked(b"a", "0", SIZE, 0.0) == [Send(b"a", "0", SIZE)]
    serving.asked(b"b", "0", SIZE, 0.0)
    assert serving.asked(b"c", "1", SIZE, 0.0) == [Refuse(b"c", "1", "busy")]
    serving.sent()
    assert serving.asked(b"c", "1", SIZE, 0.1) == [Send(b"c", "1", SIZE)]


def test_receivers_take_turns():
    serving = Serving(uplink=1.0, places=9, budget=0.0)
    for route, digest in ((b"a", "0"), (b"a", "1"), (b"a", "2"), (b"b", "3"), (b"c", "4")):
        assert serving.asked(route, digest, SIZE, 0.0) == []
    sent = [d.digest for hour in range(1, 6) for d in serving.tick(1.01 * hour * SIZE)]
    assert sent == ["0", "3", "4", "1", "2"]


def test_no_more_leaves_than_the_uplink_allows():
    serving = Serving(uplink=100 * SIZE, places=10_000)
    for number in range(500):
        serving.asked(b"a", str(number), SIZE, 0.0)
    now, sent = 0.0, 0
    while now < 2.0:
        wake = serving.next_at(now)
        assert wake is not None
        now = max(wake, now + 1e-4)
        sent += len(serving.tick(now))
        serving.validate()
    assert 195 <= sent <= 206, "2 s at 100 chunks a second, and one burst"


def test_a_source_that_stands_alone_gives_each_chunk_once():
    serving = Serving(again_s=2.0, again_bytes=SIZE)
    assert serving.asked(b"a", "0", SIZE, 0.0) == [Send(b"a", "0", SIZE)]
    assert serving.asked(b"b", "0", SIZE, 1.0) == [Refuse(b"b", "0", "elsewhere")]
    assert serving.asked(b"a", "0", SIZE, 1.0) == [Send(b"a", "0", SIZE)], "who lost it may"
    assert serving.asked(b"b", "1", SIZE - 1, 1.0) and serving.asked(b"c", "1", SIZE - 1, 1.0) == [
        Send(b"c", "1", SIZE - 1)
    ], "a small one is sent twice"
    serving.sent(3)
    assert serving.asked(b"b", "0", SIZE, 3.5) == [Send(b"b", "0", SIZE)]


def test_news_is_told_at_once_and_then_not_too_often():
    serving = Serving(news_s=0.1)
    assert serving.asked_news(b"a", "v", 0, SIZE, 0.0) == []
    assert serving.gained("v", 1, 0.01) == [Tell(b"a", "v")]
    assert serving.gained("v", 2, 0.02) == [], "it has not asked again"
    assert serving.asked_news(b"a", "v", 1, SIZE, 0.03) == [], "told 0.02 s ago"
    wake = serving.next_at(0.03)
    assert wake is not None and abs(wake - 0.11) < 1e-9
    assert serving.tick(wake) == [Tell(b"a", "v")]
    assert serving.next_at(wake) is None


def test_whoever_cannot_be_reached_holds_nobody_up():
    serving = Serving(uplink=1.0, places=3)
    serving.asked(b"gone", "0", SIZE, 0.0)
    serving.asked(b"gone", "1", SIZE, 0.0)
    serving.asked(b"b", "2", SIZE, 0.0)
    serving.asked_news(b"gone", "v", 0, SIZE, 0.0)
    serving.gone(b"gone")
    serving.validate()
    assert serving.gained("v", 1, 0.1) == []
    assert serving.tick(SIZE) == [Send(b"b", "2", SIZE)]


@given(st.lists(st.tuples(st.sampled_from("asgt"), st.integers(0, 3)), max_size=60))
@settings(deadline=None)
def test_any_order_of_events_keeps_its_books(events):
    serving, now, on_the_way = Serving(uplink=SIZE, places=4), 0.0, 0
    for what, number in events:
        now += 0.3
        route, decisions = bytes([number]), []
        if what == "a":
            decisions = serving.asked(route, str(number), SIZE, now)
        elif what == "s" and on_the_way:
            serving.sent()
            on_the_way -= 1
        elif what == "g":
            serving.gone(route)
        elif what == "t":
            decisions = serving.tick(now)
        on_the_way += sum(isinstance(d, Send) for d in decisions)
        serving.validate()
        assert serving.on_the_way == on_the_way <= 4
