"""The second half of docs/results.md: calibration, what the figures stand on, how to make them."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from _cells import CASES
from _grid import BASE, SYSTEM
from _markdown import Lines, row, table
from _ratios import spread, times
from _results import IDLE_POINTS, PAPER_IDLE, Results

from spotlightd.simulate.assumptions import Assumptions, Sourced
from spotlightd.simulate.learning import FittedCurve, load_fit

SOURCES = {
    "p3-trace": "Bamboo's traces/p3-trace.csv (github.com/uclasystem/bamboo, MIT), AWS p3",
    "g4dn-trace": "Bamboo's traces/g4dn-trace.csv (the same repository), AWS g4dn",
    "a100x1-east1b": "Bamboo's traces/gcloud/a100x1-east1b.txt (the same repository), GCP A100",
    "v100x1-east1c": "Bamboo's traces/gcloud/v100x1-east1c.txt (the same repository), GCP V100",
}


def calibration(results: Results) -> Lines:
    first = results.first
    idle = spread(results.idle("spot", first))
    off = 100 * abs(idle.mean - PAPER_IDLE)
    verdict = "within" if off <= 100 * IDLE_POINTS else "**not within**"
    yield "## Calibration"
    yield ""
    yield (
        f"The paper is said to report that spot GPUs idle {PAPER_IDLE:.0%} of the time without "
        "exploration. "
        f"From published timings alone the simulator says {idle.percent()}, {off:.0f} points off: "
        f"{verdict} the {100 * IDLE_POINTS:.0f} points that are aimed at. Nothing was tuned to it. "
        "What moves the share, one thing at a time, and what this system's advantage over reserved "
        f"GPUs would be then ({first[0]} pixels, {first[1]}, {first[2]}):"
    )
    yield ""
    yield from table(
        "changed",
        "idle without exploration",
        "training, rollout of it",
        "time, this system",
        "cost, this system",
    )
    yield _case_row(results, "", "as published")
    nearest = min(
        results.grid.cases,
        default="",
        key=lambda case: abs(fmean(results.idle("spot", first, case)) - PAPER_IDLE),
    )
    for case in results.grid.cases:
        yield _case_row(results, case, CASES[case].title)
    yield ""
    if nearest:
        share = fmean(results.idle("spot", first, nearest))
        reached = spread(results.time_ratios(BASE, SYSTEM, first, nearest)).mean
        yield (
            f'Nearest to the paper\'s share comes "{CASES[nearest].title}" with {share:.0%}, where '
            f"this system needs {reached:.2f} times less time. The paper's own number of steps and "
            "length of training are not known here, so that is an observation and no result."
        )
        yield ""


def _case_row(results: Results, case: str, title: str) -> str:
    first = results.first
    spot = list(results.runs("spot", first, case).values())
    seeds = results.runs(SYSTEM, first, case)
    note = "" if len(seeds) == len(spot) else f" ({len(seeds)} seed{'s' * (len(seeds) > 1)})"
    return row(
        title,
        spread(results.idle("spot", first, case)).percent(),
        f"{fmean(o.train_s for o in spot):.0f} s, {fmean(o.rollout_s for o in spot):.0f} s",
        times(spread(results.time_ratios(BASE, SYSTEM, first, case)).mean) + note,
        times(spread(results.cost_ratios(BASE, SYSTEM, first, None, case)).mean) + note,
    )


def kinds(results: Results) -> Lines:
    fit = load_fit()
    yield "## What is measured, modelled and assumed"
    yield ""
    yield (
        "**Real code**: planner, scheduler, leases, fences, step commits, backup leases, "
        "sequence-parallel plans, membership, the weight swarm's decisions, the ledger. "
        "**Modelled**: how long everything takes, when VMs are lost, which reward a seed gets, how "
        "the policy improves. An iteration's progress is the realised variance of what trains over "
        f"that of random seeds, to the power {fit.variance_exponent:g}, times the number that "
        f"trains over that of a whole group, to the power {fit.share_exponent:g} (fitted to "
        f"{_fitted_runs(fit.points)} real runs of the embedded model; each seed draws one of "
        f"{len(fit.draws)} bootstrap fits, {_between(fit, 0)} and {_between(fit, 1)}), so the ± "
        "above carry that doubt. What a model takes from elsewhere:"
    )
    yield ""
    yield from table("assumptions", "kind", "from")
    for name, group in _groups(results.given):
        yield row(f"`{name}`", group.kind, group.source)
    yield ""


def _between(fit: FittedCurve, place: int) -> str:
    """Return the range of one exponent over the bootstrap."""
    values = [draw[place] for draw in fit.draws]
    return f"{min(values):g} to {max(values):g}"


def _fitted_runs(points: Sequence[tuple[str, int, int, float, float]]) -> int:
    return len({(mode, seed) for mode, seed, *_ in points})


def _groups(given: Assumptions) -> Iterator[tuple[str, Sourced]]:
    for name in given.__struct_fields__:
        value = getattr(given, name)
        if isinstance(value, Sourced):
            yield name, value
        else:
            yield from ((f"{name}.{key}", task) for key, task in value.items())


def remake(results: Results) -> Lines:
    yield "## Make it again, with other assumptions"
    yield ""
    yield "    make results TRACES=/path/to/traces"
    yield "    python benchmarks/paper.py --trace p3-trace.csv --assumptions mine.toml --out mine/"
    yield ""
    yield (
        "`mine.toml` holds only what differs from `spotlightd/simulate/assumptions.toml`, such as "
        "a `[train]` section with another `step_s`. Each run is kept in `results-cache/` under a "
        "digest of all that decides it, so that what a change does not touch is not run again. "
        "`--quick` plays the smallest grid."
    )
    yield ""
    yield (
        "Traces: "
        + "; ".join(
            f"`{name}`: {SOURCES.get(name, 'a file of your own')}" for name in results.grid.traces
        )
        + "."
    )
