"""When an agent leaves, and with which exit code: events and time in, decisions out."""

import hypothesis.strategies as st
from hypothesis import given

from agent.lifecycle import SAFETY_S, Advice, BeginDrain, Leave, Lifecycle, Notice
from spotlightd.errors import ExitCode

PREEMPTED = Notice("SIGTERM", 30.0, preempted=True)
ASKED = Notice("scale down", 30.0, preempted=False)


def pulling():
    lifecycle = Lifecycle()
    lifecycle.welcomed()
    lifecycle.ready()
    assert lifecycle.phase == "pulling"
    return lifecycle


def test_it_pulls_once_it_is_welcomed_and_a_worker_is_ready():
    lifecycle = Lifecycle()
    lifecycle.ready()
    assert lifecycle.phase == "joining"
    lifecycle.welcomed()
    assert lifecycle.phase == "loading"
    lifecycle.ready()
    assert lifecycle.phase == "pulling"


def test_without_a_notice_it_stays():
    assert pulling().tick(1e9, settled=True, empty=True) is None


def test_a_notice_begins_one_drain():
    lifecycle = pulling()
    assert lifecycle.noticed(PREEMPTED, 100.0) == BeginDrain(PREEMPTED)
    assert lifecycle.noticed(PREEMPTED, 101.0) is None
    assert lifecycle.phase == "draining"


def test_it_leaves_as_soon_as_it_is_settled():
    lifecycle = pulling()
    lifecycle.noticed(PREEMPTED, 100.0)
    assert lifecycle.tick(100.1, settled=False, empty=False) is None
    leave = lifecycle.tick(100.2, settled=True, empty=True)
    assert leave == Leave(ExitCode.DRAINED, "SIGTERM: everything is committed")


def test_it_leaves_before_the_deadline_in_any_case():
    lifecycle = pulling()
    lifecycle.noticed(PREEMPTED, 100.0)
    assert lifecycle.tick(129.9 - SAFETY_S, settled=False, empty=False) is None
    leave = lifecycle.tick(130.0 - SAFETY_S, settled=False, empty=False)
    assert leave == Leave(ExitCode.DRAINED, "SIGTERM: the deadline is near")


def test_being_asked_to_leave_is_no_preemption():
    lifecycle = pulling()
    lifecycle.noticed(ASKED, 0.0)
    leave = lifecycle.tick(0.0, settled=True, empty=True)
    assert leave is not None and leave.exit_code == ExitCode.OK


def test_an_earlier_deadline_counts_and_a_later_one_does_not():
    lifecycle = pulling()
    lifecycle.noticed(PREEMPTED, 100.0)
    lifecycle.noticed(Notice("metadata", 10.0, preempted=True), 100.0)
    lifecycle.noticed(Notice("operator", 500.0, preempted=False), 100.0)
    assert lifecycle.deadline == 110.0 - SAFETY_S


def test_a_notice_with_no_time_left_leaves_at_once():
    lifecycle = pulling()
    lifecycle.noticed(Notice("SIGTERM", 0.0, preempted=True), 7.0)
    assert lifecycle.tick(7.0, settled=False, empty=False) is not None


def test_a_notice_counts_before_the_first_welcome():
    lifecycle = Lifecycle()
    lifecycle.noticed(PREEMPTED, 0.0)
    lifecycle.welcomed()
    lifecycle.ready()
    assert lifecycle.phase == "draining"


def test_upon_advice_it_finishes_what_it_holds_and_leaves():
    lifecycle = pulling()
    assert lifecycle.advised(Advice("aws metadata"))
    assert not lifecycle.advised(Advice("aws metadata"))
    assert lifecycle.phase == "finishing"
    assert lifecycle.tick(1e6, settled=True, empty=False) is None
    assert lifecycle.tick(1e6, settled=False, empty=True) is None
    leave = lifecycle.tick(1e6, settled=True, empty=True)
    assert leave == Leave(ExitCode.DRAINED, "aws metadata: everything is finished")


def test_a_notice_ends_the_finishing_and_advice_does_not_end_a_drain():
    lifecycle = pulling()
    lifecycle.advised(Advice("aws metadata"))
    assert lifecycle.noticed(PREEMPTED, 100.0) == BeginDrain(PREEMPTED)
    assert not lifecycle.advised(Advice("aws metadata"))
    assert lifecycle.tick(101.0, settled=True, empty=False) is not None


events = st.one_of(
    st.just("advised"),
    st.just("welcomed"),
    st.just("ready"),
    st.tuples(st.floats(0, 60), st.booleans()),
    st.booleans(),
)


@given(st.lists(st.tuples(events, st.floats(0, 20)), max_size=30))
def test_in_any_order_it_leaves_once_and_never_late(story):
    lifecycle, now, left = Lifecycle(), 0.0, 0
    due = float("inf")
    for event, passed in story:
        now += passed
        if event == "welcomed":
            lifecycle.welcomed()
        elif event == "ready":
            lifecycle.ready()
        elif event == "advised":
            lifecycle.advised(Advice("a"))
        elif isinstance(event, tuple):
            if lifecycle.phase != "gone":
                due = min(due, now + event[0])
            lifecycle.noticed(Notice("n", *event), now)
        else:
            left += lifecycle.tick(now, event, event) is not None
            assert lifecycle.phase == "gone" or now < due
        if lifecycle.phase == "gone" and lifecycle.notice is None:
            assert lifecycle.advice is not None
            continue
        draining = lifecycle.phase in ("draining", "gone")
        assert draining == (lifecycle.deadline is not None) == (lifecycle.notice is not None)
    assert left == (lifecycle.phase == "gone") <= 1
