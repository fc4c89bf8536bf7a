"""How much faster a policy learns from groups that spread more: a fit to real training.

    python benchmarks/learning_curve.py --runs exploration-out [--json FILE] [--write FILE]

Reads the runs that `benchmarks/exploration.py --out exploration-out` has kept (every mode, three
seeds) and fits, to the rise of the held-out reward,

    rise = A (1 - exp(-x / tau)),   x = sum over iterations of (V / V_random) ^ exponent

V is the mean variance of an iteration's groups. What random groups would have had then, V_random,
is a line through the runs without exploration, over the mean reward of random seeds. The exponent's
uncertainty is a bootstrap over runs. --write keeps points, fit and bootstrap for the simulator
(`spotlightd/simulate/learning_curve.json`).
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from _report import finish, make_parser

EXPONENTS = np.arange(0.0, 2.001, 0.05)
TAUS = np.array([4, 6, 8, 10, 12, 14, 16, 20, 25, 30, 40, 60, 100, 1000], dtype=float)
DRAWS = 100
Run = dict[str, Any]


def variance_ratios(runs: list[Run]) -> None:
    """Give each run `ratios`: by iteration, the variance of its groups over that of random ones."""
    random = [
        (row["control.ocr"], row["planner.variance"])
        for run in runs
        if run["mode"] == "off"
        for row in _iterations(run)
    ]
    if not random:
        raise SystemExit("learning_curve: no run of mode 'off': there is nothing to compare with")
    slope, level = np.polyfit(*zip(*random, strict=True), 1)
    for run in runs:
        expected = [max(level + slope * row["control.ocr"], 1e-3) for row in _iterations(run)]
        seen = [row["planner.variance"] for row in _iterations(run)]
        run["ratios"] = np.array(seen) / np.array(expected)


def _iterations(run: Run) -> list[dict[str, float]]:
    rows = (run["metrics"][key] for key in sorted(run["metrics"], key=int))
    return [row for row in rows if "planner.variance" in row]


def points_of(run: Run, exponent: float) -> list[tuple[int, float, float]]:
    """Return (version, progress, rise of the held-out reward) of each evaluation but the first."""
    progress = np.concatenate([[0.0], np.cumsum(run["ratios"] ** exponent)])
    start = run["held_out"][0][2]
    return [(int(p[0]), float(progress[int(p[0])]), p[2] - start) for p in run["held_out"][1:]]


def fit(runs: list[Run]) -> tuple[float, float, float, float]:
    """Return (exponent, tau, rise, rms of the residuals) of the best curve on the grid."""
    best = (np.inf, 0.0, 0.0, 0.0)
    for exponent in EXPONENTS:
        rows = [point for run in runs for point in points_of(run, exponent)]
        x, y = np.array([r[1] for r in rows]), np.array([r[2] for r in rows])
        for tau in TAUS:
            shape = 1 - np.exp(-x / tau)
            rise = float(shape @ y / (shape @ shape))
            error = float(np.sqrt(np.mean((y - rise * shape) ** 2)))
            best = min(best, (error, float(exponent), float(tau), rise))
    return best[1], best[2], best[3], best[0]


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--runs", type=Path, default=Path("exploration-out"))
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    runs = [json.loads(path.read_text()) for path in sorted(args.runs.glob("*.json"))]
    if not runs:
        print(f"learning_curve: no runs in {args.runs}: benchmarks/exploration.py makes them")
        return 69
    variance_ratios(runs)
    exponent, tau, rise, rms = fit(runs)
    rng = np.random.default_rng(0)
    draws = [fit([runs[i] for i in rng.integers(0, len(runs), len(runs))])[0] for _ in range(DRAWS)]
    if args.write:
        points = [
            [run["mode"], run["seed"], version, round(x, 4), round(y, 4)]
            for run in runs
            for version, x, y in points_of(run, exponent)
        ]
        kept = {
            "script": "benchmarks/learning_curve.py",
            "exponent": round(exponent, 4),
            "tau": tau,
            "rise": round(rise, 4),
            "rms": round(rms, 4),
            "draws": [round(draw, 4) for draw in draws],
            "points": points,
        }
        args.write.write_text(json.dumps(kept) + "\n")
    explored = [run["ratios"].mean() for run in runs if run["mode"] != "off"]
    figures = {
        "runs": float(len(runs)),
        "exponent": exponent,
        "exponent_p5": float(np.percentile(draws, 5)),
        "exponent_p95": float(np.percentile(draws, 95)),
        "tau_iterations": tau,
        "rise": rise,
        "rms": rms,
        "variance_ratio_explored": float(np.mean(explored)) if explored else 0.0,
    }
    return finish(f"Learning over group variance, {len(runs)} runs", figures, args)


if __name__ == "__main__":
    sys.exit(main())
