"""docs/results.md, section by section: every number in it comes from the cells."""

from statistics import fmean

from _grid import BASE, CORE, MORE, SUBSET, SYSTEM
from _grounds import calibration, kinds, remake
from _markdown import Lines, row, table
from _ratios import (
    DISCOUNTS,
    against,
    gain_of,
    lost_share,
    range_of,
    recoveries,
    show_recoveries,
    spread,
    times,
    why_cost,
    why_time,
)
from _results import PAPER_COST, PAPER_IDLE, PAPER_TIME, Results
from _techniques import factors, fewest, sizes

from spotlightd.simulate.outcome import Outcome
from spotlightd.simulate.variants import VARIANTS


def render_page(results: Results) -> str:
    sections = (_head, _claims, _tables, _prices, factors, sizes, calibration, kinds, remake)
    return "\n".join(line for section in sections for line in section(results)) + "\n"


def _head(results: Results) -> Lines:
    fleet, grid = results.given.fleet, results.grid
    yield "# Results of the simulation"
    yield ""
    yield "<!-- Made by `make results`; a change by hand is lost. -->"
    yield ""
    yield (
        f"{fleet.reserved_gpus} reserved GPUs and {fleet.spot_vms} spot VMs of "
        f"{fleet.gpus_per_vm}, Qwen-Image, played in virtual time until a target score: the "
        "decisions are the daemon's and the agent's own code, durations, losses and rewards are "
        "models ([simulation](simulation.md)). **None of this has run on GPUs.** Where the paper "
        "(Spotlight, arXiv 2606.19004) gives a number, it stands beside ours; its traces, its "
        "baselines' names and its batch are not known here."
    )
    yield ""
    yield (
        f"Figures are means ± standard deviation over {len(grid.seeds)} seeds. Ratios are paired "
        "by seed, and above 1 this system is better. A setting is a size, a task and a trace."
    )
    yield ""


def _claims(results: Results) -> Lines:
    yield "## Beside the paper"
    yield ""
    yield from table("this system", "the paper", "here, over settings", "")
    for base in (BASE, SUBSET, MORE):
        means, title = results.means("time", base), VARIANTS[base].title
        yield row(
            f"time to target, against {title}",
            times(PAPER_TIME),
            range_of(means),
            against(means, PAPER_TIME),
        )
    low, high = PAPER_COST
    for base in (BASE, SUBSET, MORE):
        means, title = results.means("cost", base), VARIANTS[base].title
        yield row(
            f"cost to target, against {title}",
            f"{low:g} to {high:g}x",
            range_of(means),
            against(means, low, high),
        )
    idle = [fmean(results.idle("spot", setting)) for setting in results.settings()]
    off = max(abs(share - PAPER_IDLE) for share in idle)
    yield row(
        "spot GPUs idle without exploration",
        f"about {PAPER_IDLE:.0%}",
        range_of(idle, ".0%"),
        f"off by up to {100 * off:.0f} points: [calibration](#calibration)",
    )
    kept = [fmean(results.idle(SYSTEM, setting)) for setting in results.settings()]
    yield row("spot GPUs idle with it", "", range_of(kept, ".0%"), "")
    regroup = results.given.regroup
    yield row(
        "regrouping of sequence-parallel workers",
        "under a second",
        f"{regroup.elastic_s:g} s",
        "assumed here, so no result; `benchmarks/regroup.py` measures it on processes",
    )
    found = recoveries(
        o for setting in results.settings() for o in results.runs(SYSTEM, setting).values()
    )
    yield row(
        "until another GPU goes on with what a lost one denoised (median, longest, number)",
        "",
        show_recoveries(found),
        "silent losses are noticed by missing heartbeats",
    )
    yield ""
    yield "**Where the time goes.** " + why_time(*_pair(results)) + _trained(results)
    yield from fewest(results)
    yield ""
    prices = results.given.prices
    yield "**What it costs.** " + why_cost(*_pair(results), prices.reserved, results.spot_price)
    yield ""
    yield _three_times(results)
    yield ""
    yield "![Time to target, against reserved GPUs only](results-time.svg)"
    yield ""


def _pair(results: Results) -> tuple[Outcome, Outcome]:
    """Reserved GPUs alone and this system, in the first setting."""
    seed = results.grid.seeds[0]
    return results.runs(BASE, results.first)[seed], results.runs(SYSTEM, results.first)[seed]


def _trained(results: Results) -> str:
    """Say what of that fewer trained rollouts are, and what they are without spot GPUs."""
    alone = results.runs(SUBSET, results.first)
    if not alone:
        return ""
    same = results.means("time", SUBSET)
    seed = results.grid.seeds[0]
    gain = gain_of(results.runs(BASE, results.first)[seed], alone[seed])
    return (
        f" Reserved GPUs alone that train as few rollouts (`{SUBSET}`) take {gain.time:.2f} times "
        f"less time than the recipe that trains them all; against those this system takes "
        f"{range_of(same)} times less, which is what spot GPUs add."
    )


def _three_times(results: Results) -> str:
    ratios = results.means("time", MORE)
    word = "slower" if max(ratios) < 1 else "not always faster" if min(ratios) < 1 else "faster"
    dearer = range_of(results.means("cost", MORE))
    return (
        f"Against three times the reserved GPUs, which train every rollout three times as fast, "
        f"this system is {word} ({range_of(ratios)}), and {dearer} times cheaper."
    )


def _tables(results: Results) -> Lines:
    yield "## Every setting"
    yield ""
    yield (
        "*Lost* is the share of spot GPU time that was denoised and never committed, *yield* the "
        "variance of "
        "what trains over that of random seeds, *recovery* the median and longest time "
        "until another GPU goes on with a rollout, with the number of them. Costs are at the "
        f"assumed prices, spot being {results.discount:.0%} cheaper."
    )
    yield ""
    for side in results.grid.sides:
        for task in results.grid.tasks:
            yield f"### {side} pixels, {task}"
            yield ""
            yield from table(
                "trace",
                "variant",
                "hours",
                "iterations",
                "cost",
                "idle",
                "lost",
                "yield",
                "recovery",
                "time, against reserved",
                "cost, against reserved",
            )
            for trace in results.grid.traces:
                for variant in (*CORE, *results.grid.others):
                    yield from _setting_row(results, variant, side, task, trace)
            yield ""
    yield "![Where the time of spot GPUs goes](results-gpus.svg)"
    yield ""


def _setting_row(results: Results, variant: str, side: int, task: str, trace: str) -> Lines:
    setting = (side, task, trace)
    runs = results.runs(variant, setting)
    followed = VARIANTS[variant].spot
    if not runs or (not followed and trace != results.grid.traces[0]):
        return
    found = list(runs.values())
    late = sum(not outcome.reached for outcome in found)
    name = f"`{variant}`" + (f" ({late} of {len(found)} never reach it)" if late else "")
    idle = spread(o.spot.idle_share for o in found).percent() if followed else ""
    yield row(
        trace if followed else "",
        name,
        spread(o.time_s / 3600 for o in found).show(),
        f"{fmean(o.iterations for o in found):.1f}",
        spread(o.cost for o in found).show(0),
        idle,
        f"{fmean(map(lost_share, found)):.2%}" if followed else "",
        spread(o.variance_ratio for o in found).show(),
        show_recoveries(recoveries(found)) if followed else "",
        spread(results.time_ratios(BASE, variant, setting)).show(),
        spread(results.cost_ratios(BASE, variant, setting)).show(),
    )


def _prices(results: Results) -> Lines:
    yield "## Prices"
    yield ""
    yield (
        "No decision reads a price (a test holds it to that), so each run is priced again at every "
        "discount of spot GPUs. Ratios of cost to target, over all settings; the paper says "
        f"{PAPER_COST[0]:g} to {PAPER_COST[1]:g}."
    )
    yield ""
    bases = (BASE, SUBSET, MORE, "spot")
    yield from table("discount", *(f"against `{base}`" for base in bases))
    for discount in DISCOUNTS:
        cells = [
            range_of(
                [
                    spread(results.cost_ratios(base, SYSTEM, setting, discount)).mean
                    for setting in results.settings()
                ]
            )
            for base in bases
        ]
        yield row(f"{discount:.0%}", *cells)
    yield ""
    yield "![Cost to target by discount](results-cost.svg)"
    yield ""
