"""Mutated frames against decode and dispatch, chunk channel and pipes: refused, and nothing else.

    make fuzz [FRAMES=200000] [SEED=1]

Of 20 frames, 17 go into a real FleetService (`dispatch.py`), 2 through the pipes of child processes
(`pipes.py`), 1 to a real chunk server or from a lying peer (`weights.py`). Now and then invariants
are checked, and an honest agent must get a lease and commit. A frame follows from the seed and its
index; what escapes is printed with both. Exit code 1 where anything escapes, or memory grows by
more than `GROWTH_MB`.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psutil
from rich.console import Console
from rich.table import Table

from tests.fuzz.dispatch import DispatchTarget
from tests.fuzz.escaped import Escaped
from tests.fuzz.pipes import PipesTarget
from tests.fuzz.weights import WeightsTarget

GROWTH_MB = 200
"""Of resident memory after the first tenth of the frames, by which everything is loaded."""
SHARES = {"dispatch": 17, "pipes": 2, "weights": 1}
CHECKS = 50
ASKED_AT_ONCE = 100


@dataclass
class Fuzzed:
    """What became of the frames."""

    frames: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    growth_mb: float = 0.0


def resident_mb() -> float:
    return float(psutil.Process().memory_info().rss) / 2**20


async def fuzz_dispatch(seed: int, frames: int, folder: Path, fuzzed: Fuzzed) -> None:
    target = DispatchTarget(seed, folder)
    every, before = max(frames // CHECKS, 1), 0.0
    try:
        for index in range(frames):
            await target.feed(index)
            if index == frames // 10:
                before = resident_mb()
            if index % every == every - 1:
                target.validate()
                await target.serve_an_honest_agent(Random(index))
        target.validate()
        await target.serve_an_honest_agent(Random(seed))
    finally:
        await target.close()
    fuzzed.growth_mb = resident_mb() - before
    fuzzed.frames += frames
    fuzzed.outcomes += target.outcomes


def fuzz_pipes(seed: int, frames: int, fuzzed: Fuzzed) -> None:
    target = PipesTarget(seed)
    for index in range(frames):
        target.feed(index)
    fuzzed.frames += frames
    fuzzed.outcomes += target.outcomes


async def fuzz_weights(seed: int, frames: int, folder: Path, fuzzed: Fuzzed) -> None:
    """Half of the frames are requests, the other half answers."""
    target = WeightsTarget(seed, folder)
    try:
        for first in range(0, frames // 2, ASKED_AT_ONCE):
            await target.ask_badly(first, min(ASKED_AT_ONCE, frames // 2 - first))
        download = 0
        while target.outcomes["lies"] < frames // 2:
            await target.answer_badly(download)
            download += 1
    finally:
        await target.close()
    fuzzed.frames += target.outcomes["asked"] + target.outcomes["lies"]
    fuzzed.outcomes += target.outcomes


def run(seed: int, frames: int) -> Fuzzed:
    """Feed so many frames. Raises Escaped, or AssertionError where an invariant is broken."""
    fuzzed, whole = Fuzzed(), sum(SHARES.values())
    count = {name: frames * share // whole for name, share in SHARES.items()}
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
        folders = [Path(temporary) / name for name in SHARES]
        for folder in folders:
            folder.mkdir()
        asyncio.run(fuzz_dispatch(seed, count["dispatch"], folders[0], fuzzed))
        fuzz_pipes(seed, count["pipes"], fuzzed)
        asyncio.run(fuzz_weights(seed, count["weights"], folders[2], fuzzed))
    return fuzzed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--frames", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    # Each refusal is a line in the daemon's log: a hundred thousand of them say nothing more.
    logging.getLogger("spotlightd").setLevel(logging.ERROR)
    logging.getLogger("spotlightd").addHandler(logging.NullHandler())
    logging.getLogger("spotlightd").propagate = False
    began, console = time.monotonic(), Console()
    try:
        fuzzed = run(args.seed, args.frames)
    except (Escaped, AssertionError) as error:
        console.print(f"[red]escaped[/]: {error}", highlight=False)
        return 1
    table = Table(title=f"{fuzzed.frames:,} frames of seed {args.seed}")
    table.add_column("what became of them")
    table.add_column("frames", justify="right")
    for name, number in fuzzed.outcomes.most_common():
        table.add_row(name, f"{number:,}")
    console.print(table)
    seconds = time.monotonic() - began
    console.print(f"nothing escaped; memory grew by {fuzzed.growth_mb:.0f} MB; {seconds:.0f} s")
    return 0 if fuzzed.growth_mb <= GROWTH_MB else 1


if __name__ == "__main__":
    sys.exit(main())
