"""`spotlightd simulate`: one run in virtual time, as a table or as JSON."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from spotlightd.config import Config, load
from spotlightd.simulate.assumptions import Assumptions, load_assumptions
from spotlightd.simulate.outcome import Outcome, Usage
from spotlightd.simulate.run import Simulation
from spotlightd.simulate.traces import load_trace
from spotlightd.simulate.variants import Variant, find_variant


def configure(path: Path, changes: Mapping[str, str], variant: Variant) -> Config:
    """Return the configuration with a variant's changes, which no environment variable touches."""
    config = load(path, {**changes, **variant.changes}, {})[0]
    if variant.reserved_rolls_out:
        return config
    # Not a key given to `load`: it refuses the file's keys of the trainer's sampling then.
    run = msgspec.structs.replace(config.run, trainer_rolls_out=False)
    return msgspec.structs.replace(config, run=run)


def simulate(
    config: Path,
    changes: Mapping[str, str],
    trace: Path,
    seed: int,
    variant: str,
    assumptions: Path | None,
) -> Outcome:
    """Play one run.

    Raises:
        ConfigError, InputError: configuration, trace or assumptions that cannot be used.
        UsageError: an unknown variant.
    """
    chosen = find_variant(variant)
    given: Assumptions = load_assumptions(assumptions)
    settings = configure(config, {**changes, "run.seed": str(seed)}, chosen)
    return Simulation(settings, given, chosen, load_trace(trace), seed).run()


def describe(outcome: Outcome) -> Iterator[str]:
    """Yield the lines of a report."""
    reached = "reached" if outcome.reached else "NOT reached"
    yield f"target            {reached} after {outcome.time_s / 3600:.3g} h"
    yield f"iterations        {outcome.iterations}, held-out score {outcome.level:.3f} (modelled)"
    yield f"cost              {outcome.cost:.4g}"
    for name, usage in (("reserved", outcome.reserved), ("spot", outcome.spot)):
        yield f"{name + ' GPUs':<17} {_shares(usage)}"
    yield f"phases            rollout {outcome.rollout_s:.1f} s, training {outcome.train_s:.1f} s"
    yield (
        f"preemptions       {outcome.preemptions}, {outcome.silent} without notice; "
        f"{outcome.lost_gpu_s:.0f} GPU-s lost, {outcome.resumed} leases resumed"
    )
    recovery = sorted(outcome.recovery_s)
    if recovery:
        middle = recovery[len(recovery) // 2]
        yield f"recovery          median {middle:.2f} s, longest {recovery[-1]:.1f} s"
    yield (
        f"exploration       {outcome.explored} candidates, variance of what trains "
        f"{outcome.variance_ratio:.2f} times that of random seeds"
    )
    yield f"history           {outcome.events} events, digest {outcome.digest}"


def _shares(usage: Usage) -> str:
    if not usage.held:
        return "none"
    parts = (usage.useful, usage.wasted, usage.loading, usage.boot, usage.idle)
    names = ("useful", "wasted", "loading", "boot", "idle")
    shares = ", ".join(f"{n} {p / usage.held:.1%}" for n, p in zip(names, parts, strict=True))
    return f"{usage.held / 3600:.4g} h: {shares}"
