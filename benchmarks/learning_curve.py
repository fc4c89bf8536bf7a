"""How fast a policy learns from groups that spread more, or of which fewer train: a fit.

    python benchmarks/learning_curve.py --runs exploration-out [--json FILE] [--write FILE]

Reads the runs that `benchmarks/exploration.py --out exploration-out` has kept (real training, every
mode, three seeds) and fits, to the rise of the held-out reward,

    rise = A (1 - exp(-x / tau)),   x = sum over iterations of (V / V_random) ^ a (k / 16) ^ b

V is the mean variance of what trained of an iteration's groups, k rollouts of each. What random
groups would have had then, V_random, is a line through the runs without exploration, over the mean
reward of random seeds. Both variances are unbiased, so that sizes compare. The exponents'
uncertainty is a bootstrap over runs. --write keeps points, fit and bootstrap for the simulator
(`spotlightd/simulate/learning_curve.json`).
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _report import finish, make_parser
from exploration import FLAGS

PROMPTS = int(FLAGS["planner.prompts_per_iteration"])
GROUP_SIZE = int(FLAGS["planner.group_size"])
EXPONENTS = np.arange(0.0, 1.501, 0.05)
TAUS = np.array([4, 6, 8, 10, 12, 14, 16, 20, 25, 30, 40, 60, 100, 1000], dtype=float)
DRAWS = 100
Run = dict[str, Any]


class Fit(NamedTuple):
    error: float
    """Root mean square of the residuals, in held-out reward."""
    by_variance: float
    by_share: float
    tau: float
    rise: float


def measure(runs: Sequence[Run]) -> None:
    """Give each run `ratios`, by iteration the variance of what trained over that of random groups,
    and `share`, how many of a group trained over those of a whole one."""
    random = [
        (row["control.ocr"], row["planner.variance"] * GROUP_SIZE / (GROUP_SIZE - 1))
        for run in runs
        if run["mode"] == "off"
        for row in _iterations(run)
    ]
    if not random:
        raise SystemExit("learning_curve: no run of mode 'off': there is nothing to compare with")
    slope, level = np.polyfit(*zip(*random, strict=True), 1)
    for run in runs:
        rows = _iterations(run)
        size = rows[0]["planner.trained"] / PROMPTS
        expected = np.maximum(level + slope * np.array([row["control.ocr"] for row in rows]), 1e-3)
        seen = np.array([row["planner.variance_trained"] for row in rows]) * size / (size - 1)
        run["ratios"], run["share"] = seen / expected, size / GROUP_SIZE


def _iterations(run: Run) -> list[dict[str, float]]:
    rows = (run["metrics"][key] for key in sorted(run["metrics"], key=int))
    return [row for row in rows if "planner.variance_trained" in row]


def rises(run: Run) -> list[tuple[int, float]]:
    """Return (version, rise of the held-out reward) of each evaluation but the first."""
    start = run["held_out"][0][2]
    return [(int(point[0]), point[2] - start) for point in run["held_out"][1:]]


def progress(run: Run, by_variance: float, by_share: float) -> list[float]:
    """Return the progress at each evaluation but the first."""
    summed = np.cumsum(run["ratios"] ** by_variance) * run["share"] ** by_share
    return [float(summed[version - 1]) for version, _ in rises(run)]


def fit(runs: Sequence[Run]) -> Fit:
    """Return the best curve on the grid."""
    y = np.array([rise for run in runs for _, rise in rises(run)])
    shares = np.array([run["share"] for run in runs for _ in rises(run)])
    best = Fit(np.inf, 0.0, 0.0, 0.0, 0.0)
    for by_variance in EXPONENTS:
        whole = np.array([x for run in runs for x in progress(run, by_variance, 0.0)])
        x_BP = whole * shares ** EXPONENTS[:, None]
        shape_TBP = 1 - np.exp(-x_BP / TAUS[:, None, None])
        rise_TB = shape_TBP @ y / (shape_TBP**2).sum(-1)
        error_TB = np.sqrt(np.mean((y - rise_TB[..., None] * shape_TBP) ** 2, axis=-1))
        t, b = np.unravel_index(np.argmin(error_TB), error_TB.shape)
        found = (error_TB[t, b], by_variance, EXPONENTS[b], TAUS[t], rise_TB[t, b])
        best = min(best, Fit(*map(float, found)))
    return best


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--runs", type=Path, default=Path("exploration-out"))
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    runs = [json.loads(path.read_text()) for path in sorted(args.runs.glob("*.json"))]
    if not runs:
        print(f"learning_curve: no runs in {args.runs}: benchmarks/exploration.py makes them")
        return 69
    measure(runs)
    found = fit(runs)
    rng = np.random.default_rng(0)
    draws = [fit([runs[i] for i in rng.integers(0, len(runs), len(runs))]) for _ in range(DRAWS)]
    if args.write:
        points = [
            [run["mode"], run["seed"], version, round(x, 4), round(y, 4)]
            for run in runs
            for (version, y), x in zip(
                rises(run), progress(run, found.by_variance, found.by_share), strict=True
            )
        ]
        kept = {
            "script": "benchmarks/learning_curve.py",
            "variance_exponent": round(found.by_variance, 4),
            "share_exponent": round(found.by_share, 4),
            "tau": found.tau,
            "rise": round(found.rise, 4),
            "rms": round(found.error, 4),
            "draws": [[round(draw.by_variance, 4), round(draw.by_share, 4)] for draw in draws],
            "points": points,
        }
        args.write.write_text(json.dumps(kept) + "\n")
    figures = {"runs": float(len(runs))}
    for name, value, values in (
        ("variance_exponent", found.by_variance, [draw.by_variance for draw in draws]),
        ("share_exponent", found.by_share, [draw.by_share for draw in draws]),
    ):
        figures[name] = value
        figures[f"{name}_p5"] = float(np.percentile(values, 5))
        figures[f"{name}_p95"] = float(np.percentile(values, 95))
    figures |= {"tau_iterations": found.tau, "rise": found.rise, "rms": found.error}
    for mode in dict.fromkeys(run["mode"] for run in runs):
        ratios = [run["ratios"].mean() for run in runs if run["mode"] == mode]
        figures[f"variance_ratio_{mode}"] = float(np.mean(ratios))
    return finish(f"Learning from contrast, {len(runs)} runs", figures, args)


if __name__ == "__main__":
    sys.exit(main())
