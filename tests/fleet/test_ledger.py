"""Every GPU-second in exactly one class."""

from concurrent.futures import Future

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from spotlightd.errors import TryAgainError
from spotlightd.fleet.account_keeper import AccountKeeper
from spotlightd.fleet.ledger import Ledger


@pytest.fixture
def ledger() -> Ledger:
    made = Ledger()
    made.join("a", "vm", "agent", 2, 3.6, now=100.0)
    return made


def test_time_is_split_without_rest(ledger):
    ledger.heartbeat("a", busy_s=50.0, loading_s=10.0)
    ledger.committed("a", 30.0)
    ledger.spent_in_vain("a", 5.0)
    assert ledger.classes("a", 150.0) == {
        "useful": 30.0,
        "wasted": 20.0,
        "loading": 10.0,
        "idle": 40.0,
    }
    ledger.validate(150.0)


def test_who_did_nothing_was_idle(ledger):
    nothing = {"useful": 0.0, "wasted": 0.0, "loading": 0.0}
    assert ledger.classes("a", 150.0) == nothing | {"idle": 100.0}
    assert ledger.classes("nobody", 150.0) == {}


def test_totals_are_over_all_accounts(ledger):
    ledger.join("b", "vm", "trainer", 1, 1.0, now=140.0)
    ledger.heartbeat("a", busy_s=50.0, loading_s=10.0)
    ledger.committed("a", 30.0)
    ledger.heartbeat("b", busy_s=2.0, loading_s=3.0)
    assert ledger.totals(150.0) == {
        "useful": 30.0,
        "wasted": 22.0,
        "loading": 13.0,
        "idle": 45.0,
    }
    assert Ledger().totals(1.0) == dict.fromkeys(("useful", "wasted", "loading", "idle"), 0.0)


def test_figures_are_cumulative(ledger):
    """Loading may have taken longer than all work since."""
    for busy_s, loading_s in ((1.0, 6.0), (2.0, 7.0), (9.0, 7.5)):
        ledger.heartbeat("a", busy_s, loading_s)
        assert (ledger.accounts["a"].busy_s, ledger.accounts["a"].loading_s) == (busy_s, loading_s)


@pytest.mark.parametrize(("up_s", "held"), [(25.0, 80.0), (20.0, 80.0), (15.0, 40.0)])
def test_a_silence_is_billed_where_the_same_process_comes_back(ledger, up_s, held):
    """It was last heard at 110 and speaks again at 130."""
    ledger.left("a", 110.0, lost=True)
    assert sum(ledger.classes("a", 130.0).values()) == 20.0
    ledger.join("a", "vm", "agent", 2, 3.6, now=130.0, up_s=up_s)
    assert sum(ledger.classes("a", 140.0).values()) == held


def test_who_said_goodbye_was_not_there_in_between(ledger):
    ledger.left("a", 110.0)
    ledger.join("a", "vm", "agent", 2, 3.6, now=130.0, up_s=500.0)
    assert sum(ledger.classes("a", 140.0).values()) == 40.0


def test_a_daemons_absence_is_billed_where_the_agent_stayed(ledger):
    restored = Ledger.restore(ledger.dump(now=110.0))
    restored.join("a", "vm", "agent", 2, 3.6, now=130.0, up_s=500.0)
    assert sum(restored.classes("a", 140.0).values()) == 80.0


def test_what_was_silent_when_the_daemon_was_killed_is_billed_until_it_was_heard(ledger):
    assert sum(Ledger.restore(ledger.dump(now=105.0)).classes("a", 500.0).values()) == 0.0
    ledger.heartbeat("a", 0.0, 0.0, heard_at=106.0)
    restored = Ledger.restore(ledger.dump(now=110.0))
    assert sum(restored.classes("a", 500.0).values()) == 12.0
    restored.join("a", "vm", "agent", 2, 3.6, now=130.0, up_s=500.0)  # it was there all along
    assert sum(restored.classes("a", 140.0).values()) == 80.0
    restored = Ledger.restore(restored.dump(now=140.0))
    assert sum(restored.classes("a", 500.0).values()) == 60.0, "its Hello was the last of it"


def test_a_trainers_account_is_open_until_the_daemon_ends(ledger):
    ledger.join("t", "t", "trainer", 1, 1.0, now=100.0)
    ledger.heartbeat("t", 3.0, 1.0)
    restored = Ledger.restore(ledger.dump_changed(110.0))
    assert sum(restored.classes("t", 500.0).values()) == 10.0
    assert set(ledger.dump_changed(120.0, "t")) == {"t"}


def test_busy_time_that_was_not_committed_is_wasted_after_a_kill(ledger):
    ledger.heartbeat("a", busy_s=8.0, loading_s=0.0)
    ledger.left("a", 110.0)
    assert ledger.classes("a", 500.0) == {
        "useful": 0.0,
        "wasted": 8.0,
        "loading": 0.0,
        "idle": 12.0,
    }


def test_absence_is_not_billed(ledger):
    ledger.left("a", 110.0)
    ledger.join("a", "vm", "agent", 1, 3.6, now=200.0)
    assert sum(ledger.classes("a", 210.0).values()) == pytest.approx(20 + 10)
    assert ledger.cost(210.0, "agent") == pytest.approx(30 / 3600 * 3.6)
    assert ledger.cost_all_reserved(210.0, 36.0) == pytest.approx(30 / 3600 * 36)


def test_a_process_that_starts_anew_counts_on(ledger):
    ledger.heartbeat("a", 8.0, 2.0)
    ledger.heartbeat("a", 1.0, 0.5)
    assert ledger.accounts["a"].busy_s == pytest.approx(9.0)
    assert ledger.accounts["a"].loading_s == pytest.approx(2.5)


def test_a_restart_keeps_the_account_and_does_not_bill_the_gap(ledger):
    ledger.committed("a", 4.0)
    ledger.heartbeat("a", 4.0, 0.0, heard_at=110.0)
    restored = Ledger.restore(ledger.dump(now=110.0))
    assert restored.classes("a", 999.0) == ledger.classes("a", 110.0)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["join", "heartbeat", "committed", "vain", "left"]),
        st.floats(0, 50),
        st.floats(0, 50),
    ),
    max_size=30,
)


@given(EVENTS)
@settings(deadline=None)
def test_any_history_adds_up(events):
    ledger, now, stored = Ledger(), 0.0, {}
    for number, (kind, first, second) in enumerate(events):
        now += second
        if kind == "join":
            ledger.join("a", "vm", "agent", 2, 1.0, now)
        elif kind == "heartbeat":
            ledger.heartbeat("a", first, second, heard_at=now)
        elif kind == "committed":
            ledger.committed("a", first)
        elif kind == "vain":
            ledger.spent_in_vain("a", first)
        else:
            ledger.left("a", now)
        ledger.validate(now)
        if number % 3 == 0:
            stored |= ledger.dump_changed(now)
    stored |= ledger.dump_changed(now)
    assert stored == ledger.dump(now + 5), "what was stored piece by piece is the whole"
    Ledger.restore(stored).validate(now + 10)


def test_only_accounts_that_something_was_booked_on_are_written_again(ledger):
    ledger.join("b", "vm-b", "agent", 1, 2.0, 100.0)
    assert set(ledger.dump(110.0)) == {"a", "b"}
    assert ledger.dump_changed(111.0) == {}
    ledger.heartbeat("a", 5.0, 1.0, heard_at=112.0)
    ledger.committed("nobody", 1.0)
    first = ledger.dump_changed(112.0)
    assert set(first) == {"a"} and ledger.dump_changed(113.0) == {}
    assert Ledger.restore(first).classes("a", 999.0) == ledger.classes("a", 112.0)
    ledger.left("b", 114.0, lost=True)
    assert set(ledger.dump_changed(115.0, "a", "nobody")) == {"a", "b"}


def test_accounts_that_the_disk_refused_are_written_with_the_rest(ledger):
    class Disk:
        def __init__(self):
            self.written, self.futures = [], []

        def save_accounts(self, rows):
            self.written.append(set(rows))
            self.futures.append(Future())
            return self.futures[-1]

    disk = Disk()
    ledger.join("b", "vm-b", "agent", 1, 2.0, 100.0)
    keeper = AccountKeeper(disk, ledger)
    keeper.tick(110.0)
    ledger.committed("a", 1.0)
    keeper.tick(110.25)
    assert disk.written == [{"a", "b"}], "one write at a time"
    disk.futures[0].set_exception(TryAgainError("full"))
    keeper.tick(110.5)
    assert disk.written[1] == {"a", "b"}
    disk.futures[1].set_result(None)
    ledger.committed("b", 1.0)
    keeper.tick(110.75)
    assert disk.written[2] == {"b"}
