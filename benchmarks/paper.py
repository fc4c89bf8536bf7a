"""This system at the paper's scale, simulated: docs/results.md, with its tables and pictures.

    python benchmarks/paper.py --trace FILE [--trace FILE ...] [--seeds 3] [--quick]
                               [--assumptions FILE] [--out docs] [--json FILE] [--check]

Time and cost to a target score, idle spot GPUs, lost work, exploration yield and recovery, for this
system, its baselines, and this system without one of its techniques each: two sizes of pictures,
two tasks, every trace, every seed, with ratios paired by seed; prices from 30 to 90 % discount; the
calibration and what moves it. Each cell is computed once and kept (`_cells.py`).

Targets (--check): at least 4 times less time and 1.4 times less cost than reserved GPUs alone, in
every setting, and idle spot GPUs within 5 points of 47 % without exploration.
"""

import sys
from pathlib import Path

from _cells import CACHE, ROOT, Cells
from _grid import BASE, SIDES, SYSTEM, Grid
from _page import render_page
from _plots import Row, render_bars, render_dots
from _ratios import DISCOUNTS, shares, spread
from _report import finish, make_parser
from _results import IDLE_POINTS, PAPER_COST, PAPER_IDLE, PAPER_TIME, Results
from rich.console import Console

from spotlightd.simulate.assumptions import load_assumptions
from spotlightd.simulate.traces import load_trace


def pictures(results: Results) -> dict[str, str]:
    """Return SVG documents by file name."""
    settings = results.settings()
    sooner = [
        Row(
            f"{side} px, {task}, {trace}",
            {"this system": results.time_ratios(BASE, SYSTEM, (side, task, trace))}
            | {"spot, no exploration": results.time_ratios(BASE, "spot", (side, task, trace))},
        )
        for side, task, trace in settings
    ]
    cheaper = [
        Row(
            f"{discount:.0%} off",
            {
                f"against {base}": [
                    spread(results.cost_ratios(base, SYSTEM, setting, discount)).mean
                    for setting in settings
                ]
                for base in (BASE, "spot")
            },
        )
        for discount in DISCOUNTS
    ]
    seed = results.grid.seeds[0]
    names = ("spot", *results.grid.others, SYSTEM)
    runs = {name: results.runs(name, results.first) for name in names}
    bars = {name: shares(found[seed].spot) for name, found in runs.items() if found}
    paper = f"the paper: {PAPER_COST[0]:g} to {PAPER_COST[1]:g}"
    side, task, trace = results.first
    return {
        "results-time.svg": render_dots(
            f"Times less time than {BASE} (a dot: one seed)",
            sooner,
            (PAPER_TIME, PAPER_TIME),
            f"the paper: {PAPER_TIME:g}",
        ),
        "results-cost.svg": render_dots(
            "Times less cost by discount of spot GPUs (a dot: one setting)",
            cheaper,
            PAPER_COST,
            paper,
        ),
        "results-gpus.svg": render_bars(
            f"Where the time of spot GPUs goes ({side} px, {task}, {trace}, seed {seed})", bars
        ),
    }


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--trace", type=Path, action="append", default=[])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one size, one task, no departures")
    parser.add_argument("--assumptions", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    parser.add_argument("--cache", type=Path, default=CACHE)
    args = parser.parse_args()
    if not args.trace:
        print("paper: no --trace is given: there is nothing to follow")
        return 69
    traces = {trace.name: trace for trace in map(load_trace, args.trace)}
    grid = Grid(tuple(traces), seeds=tuple(range(1, args.seeds + 1)))
    if args.quick:
        grid = Grid(tuple(traces), SIDES[:1], grid.tasks[:1], (1, 2), (), (), (), ())
    cells = Cells(traces, args.assumptions, args.cache)
    outcomes = cells.all_of(grid.cells(), Console())
    results = Results(grid, outcomes, load_assumptions(args.assumptions))
    args.out.mkdir(parents=True, exist_ok=True)
    files = {"results.md": render_page(results)} | pictures(results)
    for name, text in files.items():
        (args.out / name).write_text(text, encoding="utf-8")
    figures = results.figures()
    figures["idle_off_by"] = abs(figures["idle_without_exploration"] - PAPER_IDLE)
    title = f"{len(outcomes)} cells, in {args.out / 'results.md'}; ratios: above 1 is better"
    least = {"time_over_reserved_worst": PAPER_TIME, "cost_over_reserved_worst": PAPER_COST[0]}
    return finish(title, figures, args, least, {"idle_off_by": IDLE_POINTS})


if __name__ == "__main__":
    sys.exit(main())
