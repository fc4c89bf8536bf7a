"""The simulated comparison: ratios and sentences by hand, and a small grid from end to end."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.console import Console

from spotlightd.simulate.assumptions import load_assumptions
from spotlightd.simulate.outcome import Outcome, Usage
from spotlightd.simulate.traces import load_trace

ROOT = Path(__file__).parents[2]
SMALL = {"run.iterations": "3", "planner.prompts_per_iteration": "3"}


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


@pytest.fixture
def trace(tmp_path):
    rows = [(0, "add", f"n{i}") for i in range(5)]
    rows += [(600_000 + 20_000 * i, "remove", f"n{i}") for i in range(3)]
    rows += [(900_000, "add", "m0"), (3_000_000, "remove", "m0")]
    path = tmp_path / "burst.csv"
    path.write_text("".join(f"{at},{kind},{name}\n" for at, kind, name in rows))
    return load_trace(path)


def outcome(time_s, iterations, spot=None, train_s=60.0, rollout_s=40.0):
    reserved, spot = Usage(useful=4 * time_s), spot or Usage()
    rest = (0, 0, 0.0, 0, (), 0, 1.0, train_s, rollout_s, 0, "")
    return Outcome("x", 1, True, time_s, iterations, 0.9, reserved, spot, *rest)


def test_ratios_are_paired_by_seed_and_seeds_without_a_partner_are_left_out():
    from _ratios import paired, spread

    assert paired({1: 8.0, 2: 9.0, 3: 1.0}, {2: 3.0, 1: 4.0}) == [2.0, 3.0]
    found = spread([2.0, 3.0, 4.0])
    assert (found.mean, found.low, found.high) == (3.0, 2.0, 4.0)
    assert found.sd == pytest.approx((2 / 3) ** 0.5)
    with pytest.raises(ValueError, match="at least one"):
        spread([])


def test_cost_at_a_discount_counts_booting_too():
    from _ratios import cost_at

    # 4 reserved GPUs for two hours, and spot GPUs for six GPU-hours, one of them booting.
    run = outcome(7200.0, 10, Usage(useful=3600.0, idle=4 * 3600.0, boot=3600.0))
    assert cost_at(run, 10.0, 0.75) == pytest.approx(8 * 10 + 6 * 2.5)
    assert cost_at(run, 10.0, 1.0) == pytest.approx(80)


def test_the_gain_is_fewer_iterations_times_shorter_ones():
    from _ratios import gain_of

    gain = gain_of(outcome(4000.0, 40), outcome(2000.0, 32))
    assert (gain.time, gain.convergence, gain.utilisation) == (2.0, 1.25, 1.6)
    assert gain.convergence * gain.utilisation == pytest.approx(gain.time)


def test_sentences_say_what_was_reached():
    from _ratios import against, range_of, show_recoveries

    assert against([4.0, 5.0], 4.0) == "reached in all 2 settings"
    assert "the best falls short by 1.00, the worst by 2.00" in against([2.0, 3.0], 4.0)
    mixed = against([1.0, 2.0], 1.4, 6.0)
    assert "missed in 1 of 2 settings, by up to 0.40" in mixed
    assert "best of 6 is 3.0 times ours" in mixed
    assert range_of([1.0, 2.345]) == "1.00 to 2.35" and range_of([1.001, 1.0]) == "1.00"
    assert show_recoveries([1.0, 2.0, 9.0]) == "2.0 s, 9 s (3)" and show_recoveries([]) == "none"


def test_the_reason_names_what_training_bounds():
    from _ratios import why_cost, why_time

    base = outcome(8000.0, 40, train_s=120.0, rollout_s=80.0)
    system = outcome(4500.0, 30, Usage(idle=8 * 4500.0), train_s=120.0, rollout_s=30.0)
    said = why_time(base, system)
    # 200 s over 150 s; 40 over 30; their product; 200 s over the 120 s of training.
    assert "1.33 times shorter; with 1.33 times fewer iterations it makes 1.78 times" in said
    assert "150 s in place of 200" in said and "would make iterations 1.67 times shorter" in said
    slow = outcome(4000.0, 50, train_s=40.0, rollout_s=40.0)
    assert "with 1.25 times more iterations it makes 2.00 times less time" in why_time(base, slow)
    # Twice as many spot GPUs at a quarter of the price: half as much again.
    assert "1.50 times as dear" in why_cost(base, system, 10.0, 2.5)
    assert "makes 1.19 times less cost" in why_cost(base, system, 10.0, 2.5)


def test_no_decision_reads_a_price(trace, tmp_path):
    from _cells import Cells, make_cell
    from _ratios import cost_at

    cell = make_cell("spotlight", 512, "ocr", trace.name, 1)
    runs = []
    for discount in (0.3, 0.9):
        prices = tmp_path / "prices.toml"
        price = 10 * (1 - discount)
        prices.write_text(f"[prices]\nreserved = 10.0\nspot = {{ a = {price}, b = {price} }}\n")
        run = Cells({trace.name: trace}, prices, tmp_path / "kept", SMALL)[cell]
        assert run.cost == pytest.approx(cost_at(run, 10.0, discount))
        runs.append(run)
    assert runs[0].digest == runs[1].digest
    assert runs[0].cost > runs[1].cost


def test_cells_are_kept_by_all_that_decides_them(trace, tmp_path, monkeypatch):
    from _cells import Cells, make_cell

    folder = tmp_path / "kept"
    cells = Cells({trace.name: trace}, None, folder, SMALL)
    cell = make_cell("spot", 512, "ocr", trace.name, 1)
    first = cells[cell]
    assert cells.known(cell) and len(list(folder.iterdir())) == 1
    monkeypatch.setattr("_cells.Simulation", None)  # Nothing is computed a second time.
    assert cells[cell] == first
    other = tmp_path / "other.toml"
    other.write_text("[boot]\nboot_s = 60.0\n")
    keys = {
        cells.key(cell),
        cells.key(make_cell("spot", 512, "ocr", trace.name, 2)),
        cells.key(make_cell("spot", 1280, "ocr", trace.name, 1)),
        cells.key(make_cell("spot", 512, "composition", trace.name, 1)),
        cells.key(make_cell("spotlight", 512, "ocr", trace.name, 1)),
        cells.key(make_cell("spot", 512, "ocr", trace.name, 1, "steps_20")),
        Cells({trace.name: trace}, other, folder, SMALL).key(cell),
    }
    assert len(keys) == 7
    # Whom no trace touches is one cell, whichever trace stands beside it.
    assert make_cell("reserved", 512, "ocr", "a", 1) == make_cell("reserved", 512, "ocr", "b", 1)


def test_a_small_grid_becomes_a_page_and_pictures(trace, tmp_path):
    from _cells import Cells
    from _grid import Grid
    from _page import render_page
    from _results import Results
    from paper import pictures

    grid = Grid(
        (trace.name,),
        (512,),
        ("ocr",),
        (1, 2),
        ("boot_600_s",),
        sizes=("2_of_8",),
        ablations=("no_commits",),
    )
    pages = {}
    for train_s in (360.0, 200.0):
        file = tmp_path / f"{train_s}.toml"
        file.write_text(f"[train]\nstep_s = {train_s}\n")
        cells = Cells({trace.name: trace}, file, tmp_path / "kept", SMALL)
        outcomes = cells.all_of(grid.cells(), Console(quiet=True))
        results = Results(grid, outcomes, load_assumptions(file))
        pages[train_s] = render_page(results)
    assert pages[360.0] != pages[200.0]
    page, figures = pages[200.0], results.figures()
    assert f"{figures['time_over_reserved_best']:.2f}" in page
    assert "| `spotlight` |" in page and "| `no_commits` |" in page
    assert "| 2 of 8 |" in page and "`reserved_subset`" in page
    assert "| `denoise` | public |" in page and "nan" not in page
    for name, text in pictures(results).items():
        assert f"({name})" in page
        assert ET.fromstring(text).tag.endswith("svg")
    assert set(re.findall(r"\((results-\w+\.svg)\)", page)) == set(pictures(results))
    json.dumps(figures)
