"""What a race says: a line for each run, a table of ratios, and what could be reached at most."""

from collections.abc import Iterator, Mapping

from _race_figures import BASE, Record, Runs, bounds, phase_means, result_of
from rich.table import Table

from spotlightd.sections import LedgerSection

SYSTEM = "spotlight"
SOONER, CHEAPER = 2.0, 3.0
"""The targets of `SYSTEM` against `BASE`."""
CURRENCY = LedgerSection().currency
COLUMNS = {
    "runs": "runs",
    "not reached": "not_reached",
    "iterations": "iterations",
    "seconds": "seconds",
    f"cost in {CURRENCY}": "cost",
    "spot idle": "spot_idle_share",
    "times sooner": "sooner",
    "times cheaper": "cheaper",
    "times fewer iterations": "fewer_iterations",
}
"""Heading and figure. Where a figure has a smallest and a largest value, they stand beside it."""


def make_table(title: str, figures: Mapping[str, float]) -> Table:
    """Return a table with a column for each variant."""
    variants = list(dict.fromkeys(name.partition(".")[0] for name in figures))
    table = Table("", *variants, title=title)
    for heading, name in COLUMNS.items():
        table.add_row(heading, *(_cell(figures, f"{variant}.{name}") for variant in variants))
    for name in ("sooner_with_start_up", "cheaper_with_start_up", "cheaper_at_90_percent_off",
                 "cheaper_if_each_vm_is_a_gpu"):  # fmt: skip
        heading = name.replace("_", " ").replace("90 percent", "90 %")
        table.add_row(heading, *(_cell(figures, f"{variant}.{name}") for variant in variants))
    return table


def _cell(figures: Mapping[str, float], name: str) -> str:
    if name not in figures:
        return ""
    text = f"{figures[name]:.3g}"
    if f"{name}_min" in figures:
        text += f" ({figures[f'{name}_min']:.3g} to {figures[f'{name}_max']:.3g})"
    return text


def describe(record: Record) -> str:
    found = result_of(record)
    reached = "reached" if found.reached else "NOT reached, counted with its whole length"
    losses = [how for _, _, how in record["losses"]]
    return (
        f"seed {record['seed']}, {record['variant']}: {record['settings']['target']:g} {reached}; "
        f"{found.seconds:.1f} s (and {found.start_up_s:.1f} s to start), {found.iterations:.1f} "
        f"iterations, {found.cost:.4f} {CURRENCY} ({found.reserved_cost:.4f} reserved, "
        f"{found.spot_cost:.4f} spot); {len(losses)} VMs lost, {losses.count('silent')} without a "
        f"notice; {record['lost']} trajectories lost"
    )


def explain(runs: Runs, figures: dict[str, float]) -> Iterator[str]:
    """Yield what two cores allow, from the measured phases, and what the system made of it."""
    base = [record for (variant, _), record in runs.items() if variant == BASE]
    own = [record for (variant, _), record in runs.items() if variant == SYSTEM]
    if not base or not own:
        return
    phases, mine = phase_means(base), phase_means(own)
    rollout_s, train_s = phases.get("rollout", 0.0), phases.get("train", 0.0)
    prices = base[0]["settings"]
    ratio = prices["spot_price"] * prices["vms"] / prices["reserved_price"]
    limit = bounds(rollout_s, train_s, ratio, SOONER, CHEAPER)
    yield (
        f"An iteration on the reserved core alone is {rollout_s:.2f} s of rollouts and "
        f"{train_s:.2f} s of training. A second core that took half of the rollouts at no cost "
        f"would make it {limit.sooner:.2f} times as fast; {SOONER:g} times takes "
        f"{limit.fewer_needed:.2f} times fewer iterations as well."
    )
    fewer = figures.get(f"{SYSTEM}.fewer_iterations", 0.0)
    yield (
        f"Measured with {SYSTEM}: {mine.get('rollout', 0.0):.2f} s of rollouts, "
        f"{mine.get('train', 0.0):.2f} s of training, and {fewer:.2f} times fewer iterations."
    )
    yield (
        f"A spot core at {ratio:.2f} of the reserved one's price makes {SOONER:g} times as fast "
        f"{limit.cheaper:.2f} times cheaper, and one that is free {limit.cheaper_free:.2f} times: "
        f"{CHEAPER:g} times cheaper takes {limit.sooner_needed:.2f} times as fast."
    )
