"""Views as a pure machine: events in, instructions out; no process, no clock."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from agent.arrange import arrange
from agent.views import CACHED_GROUPS, AskToPart, Closed, Enter, Kill, Views, survivors

PATIENCE, PART = 0.1, 30.0


@pytest.fixture
def views():
    made = Views(PATIENCE, PART)
    for index in range(4):
        made.ready(index)
    yield made
    made.validate()


def test_all_members_enter_one_generation_in_rank_order(views):
    entered = views.form([2, 3, 0], ["a", "b"])
    assert [(e.index, e.rank) for e in entered] == [(2, 0), (3, 1), (0, 2)]
    assert {e.view.generation for e in entered} == {1}
    assert entered[0].view.requests == ("a", "b")
    assert views.free() == (1,)
    with pytest.raises(ValueError, match=r"not all free: \(1,\)"):
        views.form([1, 3], [])


def test_a_view_ends_when_its_leader_was_asked_and_all_have_left(views):
    (first, *_) = views.form([0, 1], ["a"])
    assert views.part(1, now=0.0) == [AskToPart(0, 1)]
    assert views.part(1, now=0.0) == [], "asked already"
    assert views.left(0, 1, "asked", 0.1) == []
    assert views.free() == (0, 2, 3)
    assert views.left(1, 1, "asked", 0.1) == [Closed(first.view)]
    assert views.free() == (0, 1, 2, 3)


def test_words_of_an_old_generation_change_nothing(views):
    views.form([0, 1], ["a"])
    for index in (0, 1):
        views.left(index, 1, "done", 0.0)
    views.form([0, 1], ["b"])
    assert views.left(0, 1, "broken", 0.0) == [] and views.part(1, 0.0) == []
    views.entered(1, 1)
    view = views.view_of(0)
    assert (view.generation, view.broken, view.left, view.entered) == (2, False, set(), set())


def test_a_death_breaks_the_view_and_the_survivors_are_free_for_the_next(views):
    (first, *_) = views.form([0, 1, 2], ["a"])
    assert views.gone(0, now=0.0) == [] and views.free() == (3,)
    assert views.left(2, 1, "broken", 0.02) == []
    assert views.left(1, 1, "broken", 0.03) == [Closed(first.view)]
    assert survivors(first.view, views.free()) == (1, 2)
    assert views.tick(1e9) == [], "nobody is waited for"


def test_who_is_silent_while_others_broke_off_is_killed_once(views):
    views.form([0, 1, 2], ["a"])
    views.left(1, 1, "broken", now=5.0)
    assert views.next_deadline() == 5.0 + PATIENCE
    assert views.tick(5.0 + PATIENCE - 0.01) == []
    views.left(0, 1, "broken", now=5.05)
    (kill,) = views.tick(5.0 + PATIENCE)
    assert kill == Kill(2, "it does not leave generation 1")
    assert views.tick(5.0 + PATIENCE + 0.01) == [], "its death takes a moment to be heard of"
    (closed,) = views.gone(2, 5.2)
    assert survivors(closed.view, views.free()) == (0, 1)


def test_a_leader_that_reaches_no_boundary_is_killed(views):
    views.form([3], [])
    views.part(1, now=0.0)
    assert views.tick(PART - 1) == []
    assert [kill.index for kill in views.tick(PART)] == [3]


def test_groups_are_found_again_while_they_are_whole(views):
    def name(*indexes):
        entered = views.form(indexes, [])
        for index in indexes:
            views.left(index, entered[0].view.generation, "done", 0.0)
        return entered[0].view.name, {e.index: e.forget for e in entered}

    first, _ = name(0, 1)
    assert name(0, 1) == (first, {0: (), 1: ()})
    assert name(0)[0] == "", "one worker needs no group"
    views.form([0, 1], [])
    views.left(0, views.generation, "broken", 0.0)
    views.left(1, views.generation, "broken", 0.0)
    again, forget = name(0, 1)
    assert again != first and forget == {0: (first,), 1: (first,)}
    views.gone(1, 0.0)
    views.ready(1)
    assert name(0, 1) != (again, {0: (), 1: ()}), "a replacement is somebody else"


def test_the_cache_of_groups_is_bounded_and_members_are_told():
    views = Views(PATIENCE, PART)
    for index in range(8):
        views.ready(index)
    names, forgotten = set(), set()
    pairs = [(a, b) for a in range(8) for b in range(a + 1, 8)]
    for pair in [*pairs, (0, 1, 2, 3, 4, 5, 6, 7)]:
        entered = views.form(pair, [])
        names.add(entered[0].view.name)
        forgotten |= {(e.index, name) for e in entered for name in e.forget}
        for index in pair:
            views.left(index, views.generation, "done", 0.0)
        views.validate()
    assert len(names) == len(pairs) + 1
    # By the last view everybody has heard of all but the groups that are kept.
    assert len({name for _, name in forgotten}) >= len(pairs) - CACHED_GROUPS


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["form", "part", "leave", "break", "die", "freeze", "start", "tick"]),
        st.integers(0, 5),
    ),
    max_size=60,
)


@given(EVENTS)
@settings(max_examples=150, deadline=None)
def test_whatever_happens_every_view_closes_once_and_nobody_waits_for_ever(events):
    """A world in which workers answer, die and freeze at random, and kills take effect."""
    views, now, frozen, closed, opened = Views(PATIENCE, PART), 0.0, set(), [], 0

    def done(instructions):
        for instruction in instructions:
            match instruction:
                case Closed(view):
                    closed.append(view.generation)
                case Kill(index, _):
                    frozen.discard(index)
                    done(views.gone(index, now))

    def leave(index, why):
        view = views.view_of(index)
        if view is not None and index not in frozen:
            done(views.left(index, view.generation, why, now))

    for event, number in events:
        now += 0.01
        match event:
            case "start" if number not in views.present:
                views.ready(number)
            case "form" if views.free():
                opened += 1
                views.form(views.free()[: 1 + number], [f"r{opened}"])
            case "part" if views.views:
                done(views.part(min(views.views), now))
            case "leave":
                leave(number, "asked")
            case "break":
                leave(number, "broken")
            case "die":
                frozen.discard(number)
                done(views.gone(number, now))
            case "freeze" if number in views.present:
                frozen.add(number)
            case "tick":
                done(views.tick(now))
        views.validate()
    # From here on the others break off, and whoever is frozen is found.
    for generation in list(views.views):
        for index in views.views[generation].indexes if generation in views.views else ():
            leave(index, "broken")
    for generation in list(views.views):
        done(views.part(generation, now))
    for _ in range(2):
        now += 2 * PART
        done(views.tick(now))
    assert not views.views
    assert sorted(closed) == list(range(1, opened + 1))


def test_wide_groups_get_aligned_workers_and_images_stay_where_they_are():
    wanted = [(1, ("a",)), (2, ("b",)), (4, ("c",))]
    made = arrange(wanted, range(8), {"a": 6, "b": 4, "c": 1})
    assert [(a.indexes, a.requests) for a in made] == [
        ((0, 1, 2, 3), ("c",)), ((4, 5), ("b",)), ((6,), ("a",)),
    ]  # fmt: skip
    # With holes, whole blocks first; a broken row of workers only where nothing else is left.
    made = arrange([(2, ("a",)), (2, ("b",))], [1, 2, 3, 5], {})
    assert [a.indexes for a in made] == [(2, 3), (1, 5)]


def test_instructions_to_enter_name_the_group(views):
    (enter, *_) = views.form([0, 1], [])
    assert isinstance(enter, Enter) and enter.view.name == "1/0.1-1.1"
