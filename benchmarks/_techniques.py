"""The part of docs/results.md on what each technique adds, and on how many rollouts train."""

from statistics import fmean

from _cells import SIZES
from _grid import BASE, CORE, SUBSET, SYSTEM
from _markdown import Lines, row, table
from _ratios import (
    gain_of,
    iteration_s,
    lost_share,
    median_run,
    recoveries,
    show_recoveries,
    spread,
    times,
)
from _results import Results

from spotlightd.simulate.variants import VARIANTS


def factors(results: Results) -> Lines:
    side, task, trace = results.ablated
    yield "## Convergence and utilisation apart"
    yield ""
    yield (
        "The time to the target is iterations times seconds of an iteration. Each variant against "
        f"reserved GPUs only, at {side} pixels, {task}, {trace}; the first factor is how much an "
        "iteration teaches, the second how long it takes."
    )
    yield ""
    yield from table(
        "variant",
        "",
        "fewer iterations",
        "shorter iterations",
        "product",
        "this system is",
        "lost",
        "recovery",
    )
    base = results.runs(BASE, results.ablated)
    for name in (*CORE[1:], *results.grid.others, *results.grid.ablations):
        runs = results.runs(name, results.ablated)
        if not runs:
            continue
        gains = [gain_of(base[seed], runs[seed]) for seed in runs]
        faster = results.time_ratios(name, SYSTEM, results.ablated)
        found = list(runs.values())
        yield row(
            f"`{name}`",
            VARIANTS[name].title,
            spread(g.convergence for g in gains).show(),
            spread(g.utilisation for g in gains).show(),
            spread(g.time for g in gains).show(),
            "" if name == SYSTEM else f"{spread(faster).show(3)} times as fast",
            f"{fmean(map(lost_share, found)):.2%}" if VARIANTS[name].spot else "",
            show_recoveries(recoveries(found)) if VARIANTS[name].spot else "",
        )
    yield ""
    yield _idle_techniques(results)
    yield ""
    yield from _exploring(results)
    yield from _waiting(results)


def _idle_techniques(results: Results) -> str:
    """Name the techniques whose absence makes no difference here."""
    if not results.grid.ablations:
        return "No technique was switched off in this grid."
    same = []
    for name in results.grid.ablations:
        ratios = results.time_ratios(name, SYSTEM, results.ablated)
        if ratios and abs(spread(ratios).mean - 1) < 0.01:
            same.append(f"`{name}`")
    if not same:
        return "Every technique that is switched off here costs at least 1 % of the time."
    system = median_run(results.runs(SYSTEM, results.ablated))
    rollouts = system.rollout_s / iteration_s(system)
    vms = results.given.fleet.gpus_per_vm
    return (
        f"Less than 1 % of the time depends on what {', '.join(same)} lack: rollouts are "
        f"{rollouts:.0%} of an iteration, an image takes seconds, and a lost VM takes away "
        f"{vms} GPUs' images of it. They pay where images are long, or losses many; what they "
        "do to a lost rollout shows in the last two columns."
    )


def _exploring(results: Results) -> Lines:
    """Say what exploration gains, where few of a group train and where all do."""
    pairs = (("no_exploration", SYSTEM), ("spot", "all_train"))
    few, all_ = (results.time_ratios(*pair, results.ablated) for pair in pairs)
    if not few or not all_:
        return
    yield (
        f"Exploration makes this system {spread(few).mean:.2f} times as fast, and would "
        f"{spread(all_).mean:.2f} times where every rollout trains: training then leaves a longer "
        "window to explore in, and no choice among regenerated rollouts finds contrast as well."
    )
    yield ""


def _waiting(results: Results) -> Lines:
    """Say why exploration on the critical path does so badly."""
    waits = results.runs("critical_path", results.ablated)
    without = results.runs("no_exploration", results.ablated)
    if not waits or not without:
        return
    longer = iteration_s(median_run(waits)) / iteration_s(median_run(without))
    yield (
        f"In `critical_path` an iteration takes {longer:.2f} times as long as without exploration: "
        "the reserved GPUs wait while spot GPUs explore, then train while spot GPUs wait. That is "
        "this daemon's own such mode; a baseline whose reserved GPUs explore too would wait less."
    )
    yield ""


def sizes(results: Results) -> Lines:
    """How many of a group train: both ways, with and without spot GPUs."""
    if not results.grid.sizes:
        return
    side, task, trace = results.first
    yield "## How many train"
    yield ""
    yield (
        "Rewards of regenerated rollouts are exact, so the trainer may be given only those of a "
        "group that contrast most ([planner](planner.md#how-many-train)). The same for groups of "
        f"other sizes ({side} pixels, {task}, {trace}), against the recipe that trains all of "
        f"{results.group_size}, and against reserved GPUs alone that train as few:"
    )
    yield ""
    yield from table(
        "trained of a group",
        "hours",
        "iterations",
        "time, against reserved",
        "cost, against reserved",
        "time, against reserved that train as few",
        "cost, against those",
    )
    for case in results.grid.sizes:
        runs = results.runs(SYSTEM, results.first, case)
        found = list(runs.values())
        ratios = []
        for base, base_case in ((BASE, ""), (SUBSET, case)):
            where = (base, SYSTEM, results.first)
            ratios.append(results.time_ratios(*where, case, base_case))
            ratios.append(results.cost_ratios(*where, None, case, base_case))
        yield row(
            SIZES[case].title,
            spread(o.time_s / 3600 for o in found).show(),
            f"{fmean(o.iterations for o in found):.1f}",
            *(spread(each).show() for each in ratios),
        )
    yield ""
    yield (
        "How little an iteration loses by training fewer is fitted to real runs of the embedded "
        "model with the same numbers of 16 and of 8; that it is so for Qwen-Image is not shown."
    )
    yield ""


def fewest(results: Results) -> Lines:
    """Name the numbers that train which would go furthest."""
    reached = {
        SIZES[case].title: spread(ratios).mean
        for case in results.grid.sizes
        if (ratios := results.time_ratios(BASE, SYSTEM, results.first, case, ""))
    }
    if reached:
        best = max(reached, key=lambda title: reached[title])
        yield ""
        yield (
            f"Of the numbers that were tried, {best} goes furthest: {times(reached[best])} there "
            "([how many train](#how-many-train))."
        )
