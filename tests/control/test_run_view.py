"""A whole run, asked in pages, curves and strips."""

import json
import sqlite3
from itertools import pairwise

import pytest

from spotlightd.control.run_view import NotFoundError, RunView
from spotlightd.errors import InputError
from spotlightd.store.history import History
from spotlightd.store.store import Store
from spotlightd.telemetry.usage import UsageRecorder, thin
from tests.control.runs import BEGAN, SEEDS, WORDS, write_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run") / "state", iterations=40, rollouts=16)


@pytest.fixture
def view(folder):
    opened = RunView(folder)
    yield opened
    opened.close()


def test_the_tally_counts_what_is_there(folder):
    history, store = History(folder), Store(folder)
    assert history.counts() == store.request_counts() == {
        "evaluate": {"done": 2 * len(WORDS) * SEEDS}, "rollout": {"done": 640}}  # fmt: skip
    assert history.lost() == store.count_lost() == 0
    history.close()
    store.close()


def test_a_lost_result_shows(tmp_path):
    state = write_run(tmp_path / "state")
    with sqlite3.connect(state / "spotlight.db") as database:
        database.execute("DELETE FROM result WHERE request_id = 'rollout-3-3'")
    database.close()
    history = History(state)
    assert history.lost() == 1
    history.close()
    view = RunView(state)
    assert [alarm.name for alarm in view.alarms()] == ["lost"]
    view.close()


def test_pages_hold_everything_once(view):
    seen, after = [], 0
    while after is not None:
        page = view.samples(kind="rollout", after=after, limit=100)
        seen += [sample.request_id for sample in page.samples]
        after = page.next_after
    assert len(seen) == len(set(seen)) == 640


@pytest.mark.parametrize("limit", [1, 3, 500])
def test_a_prompts_pages(view, limit):
    seen, after = [], 0
    while after is not None:
        page = view.samples(prompt="light", after=after, limit=limit)
        seen += [sample.prompt_id for sample in page.samples]
        after = page.next_after
    # Sixteen rollouts over twelve words: four words twice.
    assert seen == ["light"] * (2 * SEEDS + 2 * 40)


def test_one_iteration(view):
    page = view.samples(iteration=3)
    assert {sample.iteration for sample in page.samples} == {3} and len(page.samples) == 16
    assert page.next_after is None and page.samples[0].scores["ocr"] == pytest.approx(0.4375)


def test_a_sample_and_its_picture(view):
    sample = view.sample("evaluate-40-TEA-2")
    assert (sample.target, sample.seed, sample.has_image) == ("TEA", "2", True)
    assert view.image("evaluate-40-TEA-2").startswith(b"\x89PNG")
    with pytest.raises(NotFoundError, match="no image"):
        view.image("rollout-1-1")


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "a/../b", "\x00", "' OR 1=1 --", "%2e"])
def test_strange_ids_are_unknown_ids(view, name):
    for ask in (view.sample, view.image):
        with pytest.raises(NotFoundError, match="no trajectory"):
            ask(name)


def test_the_grid_pairs_seeds_before_and_after(view):
    grid = view.grid(None, 2, 3)
    assert (grid.before, grid.after, grid.prompts, grid.versions) == (0, 40, 12, (0, 40))
    assert [row.target for row in grid.rows] == list(WORDS[2:5])
    for row in grid.rows:
        assert [c.seed for c in row.before] == [c.seed for c in row.after] == list("0123")
        assert {c.reward for c in row.after} == {0.4}
    assert view.grid(7, 0, 1).rows[0].after == ()


def test_curves_are_reduced_and_keep_their_range(view):
    (curve,) = view.curves("control.ocr", 10).curves
    assert len(curve.points) == 10
    for _, mean, least, most in curve.points:
        assert least <= mean <= most
    assert min(p[2] for p in curve.points) == 0.4
    whole = view.curves("control.*,nothing,held_out.ocr", 1000)
    assert [c.name for c in whole.curves] == [
        "control.grain", "control.ocr", "control.ocr_ctc", "held_out.ocr"]  # fmt: skip
    assert len(whole.curves[0].points) == whole.last_iteration == 40
    assert view.curves("", 5).curves == ()


def test_strips_tell_who_did_what(view):
    strips = view.strips(None, 0.0, 4, 10)
    assert strips.since == BEGAN and strips.strips[0].role == "trainer"
    assert strips.agents == 4 and strips.strips[-1].name == "host-a-3"
    for strip in strips.strips:
        for cell in strip.cells:
            assert cell.useful + cell.wasted + cell.loading + cell.idle == pytest.approx(
                1, abs=1e-3
            )
    assert strips.strips[-1].cells[-1].state == "preempted"
    assert len(view.strips(None, 0.0, 4, 2).strips) == 2
    # Of a young run, the last hour is what there is.
    assert view.strips(None, 3600.0, 4, 10) == strips
    assert view.strips(BEGAN + 10**6, 60.0, 4, 10).strips == ()


def test_the_ledger_adds_up_and_spending_ends_where_it_does(view):
    ledger = view.ledger(50)
    held = {a.agent_id: sum(a.gpu_seconds.values()) for a in ledger.accounts}
    assert held == {"trainer": 40, "a-1": 40, "a-2": 40, "a-3": 20}
    assert ledger.reserved == pytest.approx(40 / 3600 * 10)
    assert ledger.spot == pytest.approx(100 / 3600 * 2.5)
    assert ledger.spending[-1].all_on_demand > ledger.spending[-1].spot > 0
    times = [point.time for point in ledger.spending]
    assert times == sorted(times)


def test_the_timeline_opens_in_perfetto(view):
    trace = json.loads(view.timeline(None, 0.0, 10_000))
    kinds = {}
    for entry in trace["traceEvents"]:
        kinds.setdefault(entry["ph"], []).append(entry)
        assert entry["ph"] == "M" or entry["ts"] > 0
    assert len(kinds["b"]) == len(kinds["e"]) and {e["id"] for e in kinds["b"]} == {
        e["id"] for e in kinds["e"]}  # fmt: skip
    phases = sorted(kinds["X"], key=lambda e: e["ts"])
    assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(phases))
    assert {e["args"]["name"] for e in kinds["M"]} >= {"run", "host-a-1", "host-trainer"}
    assert all(sum(e["args"].values()) <= 1.5 for e in kinds["C"])
    assert len(json.loads(view.timeline(None, 0.0, 5))["traceEvents"]) < len(trace["traceEvents"])


def test_thinning_keeps_the_last_row_of_each_minute(tmp_path):
    state = write_run(tmp_path / "state", iterations=600)
    with sqlite3.connect(state / "spotlight.db") as database:
        before = database.execute("SELECT MAX(useful) FROM usage").fetchone()
        thin(database, int(BEGAN) + 500)
        rows = database.execute("SELECT time FROM usage WHERE agent_id = 'a-1'").fetchall()
        assert database.execute("SELECT MAX(useful) FROM usage").fetchone() == before
    database.close()
    old = [t for (t,) in rows if t < BEGAN + 500]
    assert len({t // 60 for t in old}) == len(old) and len(rows) - len(old) == 21


def test_usage_is_written_when_it_moves(tmp_path):
    from spotlightd.fleet.ledger import Ledger
    from spotlightd.fleet.membership import Membership

    store = Store(tmp_path / "state")
    ledger, members = Ledger(), Membership(1, 2, 3)
    recorder = UsageRecorder(store, ledger, members)
    ledger.join("a", "host", "agent", 2, 1.0, 1000.0)
    for second in range(1000, 1031):
        recorder.tick(float(second), {"a": 1.0} if second > 1020 else {})
        if second == 1012:
            ledger.left("a", 1012.0)
    store.close()
    history = History(tmp_path / "state")
    rows = [
        (int(t), idle) for t, idle in history.read("SELECT time, idle FROM usage ORDER BY time")
    ]
    history.close()
    assert rows == [(1000, 0.0), (1005, 10.0), (1010, 20.0), (1015, 24.0)]


def test_no_run_is_a_sentence(tmp_path):
    with pytest.raises(InputError, match="no run can be read"):
        RunView(tmp_path)
