"""What every benchmark has in common: options, the table, JSON, and the check of its targets."""

import argparse
import json
import math
from pathlib import Path

from rich.console import Console
from rich.table import Table


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with `--json FILE` and `--check`; the script adds its own options."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n", 1)[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    return parser


def percentile(values: list[float], percent: float) -> float:
    """Return the smallest value that `percent` of all values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(math.ceil(percent / 100 * len(ordered)) - 1, 0)]


def finish(
    title: str,
    figures: dict[str, float],
    args: argparse.Namespace,
    at_least: dict[str, float] | None = None,
    at_most: dict[str, float] | None = None,
    table: Table | None = None,
) -> int:
    """Print and write the figures; return the exit code, 1 where a checked target is missed.

    Args:
        table: shown in place of the plain one.
    """
    if table is None:
        table = Table(title=title)
        table.add_column("figure")
        table.add_column("value", justify="right")
        for name, value in figures.items():
            table.add_row(name, f"{value:,.4g}" if value < 1000 else f"{value:,.0f}")
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")
    missed = [
        f"{name} is {figures[name]:.4g}, at least {limit:g} is wanted"
        for name, limit in (at_least or {}).items()
        if figures[name] < limit
    ] + [
        f"{name} is {figures[name]:.4g}, at most {limit:g} is wanted"
        for name, limit in (at_most or {}).items()
        if figures[name] > limit
    ]
    for sentence in missed if args.check else ():
        print(f"missed: {sentence}")
    return 1 if args.check and missed else 0
