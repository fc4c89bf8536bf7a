"""Does exploration pay? Real training with each of the planner's modes, on a virtual clock.

    python benchmarks/exploration.py [--json FILE] [--check] [--out FOLDER] [--seeds 3]
                                     [--iterations 16] [--modes off,bandit/4,...]
                                     [--set section.key=value]

Trains the embedded model with the demo's settings and measures the held-out reward along the way
(`_virtual_run.py` says what is real and what is virtual). Each finished run is kept in --out and
not repeated, so that the benchmark can be stopped and gone on with.

A mode is one of the planner's; `bandit/4` is `bandit` where 4 of a group's 16 rollouts train, and
`bandit/4/8` where 4 of 8 do.

Reported, against `off`: iterations and virtual seconds to the lower of the held-out rewards at
which the two end, as ratios (above 1: sooner).
Target (--check): `bandit` needs at most half the iterations.
"""

import itertools
import json
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from _report import finish, make_parser
from _virtual_run import Hardware, VirtualRun

MODES = ("off", "fixed", "bandit", "critical_path")
MODES += ("off/8", "bandit/8", "off/4", "bandit/4", "off/2", "off/4/8", "bandit/4/8", "off/2/8")
"""Where 2 train nothing is scored in so short an update: `bandit/2` would be `off/2` again."""
EVALUATE_EVERY = 4
FLAGS = {
    "planner.prompts_per_iteration": "4",
    "planner.group_size": "16",
    "sampler.sde_window_size": "6",
    "trainer.learning_rate": "1.2e-3",
    "trainer.clip_range": "1e-3",
    "trainer.kl_beta": "0.06",
    "run.evaluate_prompts": "36",
    "run.evaluate_seeds": "2",
    "run.evaluate_every": str(EVALUATE_EVERY),
}
CANDIDATES = {
    "fixed": "planner.candidates",
    "critical_path": "planner.candidates",
    "bandit": "planner.max_candidates",
}
"""By mode, the key that says how many seeds of a prompt are explored (at most)."""
MOST_CANDIDATES = "48"


def flags_of(mode: str, seed: int, iterations: int) -> dict[str, str]:
    """Return the keys of the configuration that a run sets."""
    name, size, group_size = (*mode.split("/"), "", "")[:3]
    given = {"planner.mode": name, "run.seed": str(seed), "run.iterations": str(iterations)}
    if name in CANDIDATES:
        given[CANDIDATES[name]] = MOST_CANDIDATES
    if size:
        given["planner.train_size"] = size
    if group_size:
        given["planner.group_size"] = group_size
    return FLAGS | given


def run_one(mode: str, seed: int, iterations: int, changes: dict[str, str]) -> dict[str, Any]:
    flags = flags_of(mode, seed, iterations) | changes
    began = time.process_time()
    run = VirtualRun(flags, Hardware())
    run.run()
    points = [
        (version, run.clock.get(version, 0.0), row["held_out.ocr"], row["held_out.ocr_ctc"])
        for version, row in sorted(run.metrics.items())
        if "held_out.ocr" in row
    ]
    return {
        "mode": mode,
        "seed": seed,
        "held_out": points,
        "metrics": run.metrics,
        "reasons": run.reasons,
        "cpu_s": time.process_time() - began,
    }


def until(points: list[list[float]], level: float, axis: int) -> float:
    """Return iterations (axis 0) or seconds (1) to a held-out reward that the run reaches.

    Between evaluations the reward is taken to grow evenly; the first crossing counts.
    """
    for before, after in itertools.pairwise(points):
        if after[2] >= level:
            share = (level - before[2]) / max(after[2] - before[2], 1e-9)
            return before[axis] + max(share, 0.0) * (after[axis] - before[axis])
    raise ValueError(f"a reward of {level} is not reached in {points}")


def compare(runs: dict[tuple[str, int], dict[str, Any]], seeds: list[int]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for mode in MODES:
        done = [seed for seed in seeds if (mode, seed) in runs]
        if not done:
            continue
        ends = [runs[mode, seed]["held_out"][-1] for seed in done]
        figures[f"{mode}.runs"] = len(done)
        figures[f"{mode}.held_out"] = fmean(end[2] for end in ends)
        figures[f"{mode}.held_out_min"] = min(end[2] for end in ends)
        figures[f"{mode}.held_out_max"] = max(end[2] for end in ends)
        figures[f"{mode}.held_out_ctc"] = fmean(end[3] for end in ends)
        figures[f"{mode}.area"] = fmean(
            fmean(point[2] for point in runs[mode, seed]["held_out"]) for seed in done
        )
        paired = [seed for seed in done if ("off", seed) in runs and mode != "off"]
        if paired:
            figures |= _sooner(mode, runs, paired)
    return figures


def _sooner(
    mode: str, runs: dict[tuple[str, int], dict[str, Any]], seeds: list[int]
) -> dict[str, float]:
    """Return ratios of iterations and seconds to the lower of both ends, by seed."""
    found: dict[str, float] = {}
    for axis, name in ((0, "iterations"), (1, "seconds")):
        ratios = []
        for seed in seeds:
            plain, own = runs["off", seed]["held_out"], runs[mode, seed]["held_out"]
            level = min(plain[-1][2], own[-1][2])
            ratios.append(until(plain, level, axis) / until(own, level, axis))
        found[f"{mode}.sooner_{name}"] = fmean(ratios)
        found[f"{mode}.sooner_{name}_min"] = min(ratios)
        found[f"{mode}.sooner_{name}_max"] = max(ratios)
    return found


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("exploration-out"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=16)
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument(
        "--set", action="append", default=[], help="section.key=value, with an --out of its own"
    )
    args = parser.parse_args()
    changes = dict(each.split("=", 1) for each in args.set)
    args.out.mkdir(parents=True, exist_ok=True)
    seeds, runs = list(range(1, args.seeds + 1)), {}
    for seed in seeds:
        for mode in args.modes.split(","):
            path = args.out / f"{mode.replace('/', '-')}-{seed}-{args.iterations}.json"
            if not path.exists():
                path.write_text(json.dumps(run_one(mode, seed, args.iterations, changes)))
            runs[mode, seed] = json.loads(path.read_text())
            last = runs[mode, seed]["held_out"][-1]
            print(f"seed {seed}, {mode}: held-out {last[2]:.3f} in {last[1]:.1f} s", flush=True)
    figures = compare(runs, seeds)
    target = {"bandit.sooner_iterations": 2.0} if "bandit.sooner_iterations" in figures else {}
    title = f"Exploration, {len(seeds)} seeds, {args.iterations} iterations"
    return finish(title, figures, args, at_least=target)


if __name__ == "__main__":
    sys.exit(main())
