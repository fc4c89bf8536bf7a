"""Do scores from stale weights rank seeds as fresh ones do? Measured on the embedded model.

    python benchmarks/staleness.py [--json FILE] [--check] [--versions 12] [--prompts 8]
                                   [--seeds 24]

Trains the embedded model with the demo's settings (`_virtual_run.py`, random seeds), keeps the
adapter of every version, then scores the same seeds of the same prompts under version V - lag with
each number of exploration steps (the window's steps always kept), and under version V with all of
them. Reported: Spearman's rank correlation within each prompt, its mean and its spread over
prompts, for the edit distance, for the CTC score, and for CTC predicting the edit distance; and
rho, the linear fidelity of CTC scores for the edit distance.

Target (--check): the paper's claim, that one version of staleness keeps the ranking: 0.9 at lag 1
with all steps.
"""

import sys
from collections.abc import Mapping
from statistics import fmean, pstdev

from _report import finish, make_parser
from _virtual_run import Hardware, VirtualRun
from rich.console import Console
from rich.table import Table

from spotlightd.dit.lora import adapter_parameters
from spotlightd.planner.correlation import spearman
from spotlightd.planner.fidelity import Fidelity
from spotlightd.planner.plan import GroupPlan

LAGS = (0, 1, 2, 3, 4)
TARGET = 0.9
FLAGS = {
    "planner.mode": "off",
    "trainer.learning_rate": "1.2e-3",
    "trainer.clip_range": "1e-3",
    "trainer.kl_beta": "0.06",
    "run.evaluate_prompts": "1",
    "run.evaluate_seeds": "1",
}
KINDS = {"edit": ("ocr", "ocr"), "ctc": ("ocr_ctc", "ocr_ctc"), "ctc_edit": ("ocr_ctc", "ocr")}
"""Name -> (stale score, fresh reward)."""

Scores = Mapping[str, list[dict[str, float]]]
"""By prompt, in the order of the seeds."""


class Recorder(VirtualRun):
    """Keeps each version's adapter."""

    def train_versions(self) -> dict[int, dict[str, object]]:
        self.kept: dict[int, dict[str, object]] = {0: self._adapter()}
        self.run()
        return self.kept

    def _adapter(self) -> dict[str, object]:
        parameters = adapter_parameters(self.policy.model)
        return {name: value.detach().clone() for name, value in parameters.items()}

    def updated(self, version: int) -> None:
        self.kept[version] = self._adapter()

    def bind(self, version: int) -> None:
        for name, value in adapter_parameters(self.policy.model).items():
            value.data.copy_(self.kept[version][name])

    def score(self, groups: list[GroupPlan], iteration: int, tail: int) -> Scores:
        requests = self.cycle.plan.explorations(groups, iteration, iteration, tail)
        by_id = {result.request_id: result.scores for result in self.sample(requests)}
        return {
            group.prompt_id: [
                by_id[self.cycle.plan.explore_id(group, member, iteration)]
                for member in group.members
            ]
            for group in groups
        }


def correlations(stale: Scores, fresh: Scores) -> dict[str, list[float]]:
    """Return rank correlations by kind, one per prompt that has a ranking on both sides."""
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for kind, (x, y) in KINDS.items():
        for prompt in fresh:
            rho = spearman([row[x] for row in stale[prompt]], [row[y] for row in fresh[prompt]])
            if rho is not None:
                found[kind].append(rho)
    return found


def fidelity(stale: Scores, fresh: Scores) -> float:
    """Return rho as the planner would learn it from these pairs alone."""
    belief = Fidelity()
    for prompt, rows in fresh.items():
        xs, ys = [row["ocr_ctc"] for row in stale[prompt]], [row["ocr"] for row in rows]
        sx, sy = pstdev(xs), pstdev(ys)
        if sx > 0 and sy > 0:
            belief.observe([x / sx for x in xs], [y / sy for y in ys])
    return belief.rho()


def measure(run: Recorder, versions: int, prompts: int, seeds: int) -> dict[str, float]:
    # An iteration that was never trained: its prompts and seeds are new to every version.
    iteration = versions + 1
    plan = run.cycle.plan
    groups = plan.candidate_groups(iteration, seeds)
    while len(groups) < prompts:
        iteration += 1
        groups += plan.candidate_groups(iteration, seeds)[: prompts - len(groups)]
    run.bind(versions)
    full = plan.full_tail
    fresh = run.score(groups, versions, full)
    figures: dict[str, float] = {}
    table = Table(title="Spearman, stale against fresh: mean (spread over prompts)")
    for column in ("lag", "tail steps", "edit distance", "CTC", "CTC for edit", "rho"):
        table.add_column(column, justify="right")
    for lag in LAGS:
        run.bind(versions - lag)
        for tail in run.cycle.explorer.planner.tails:
            stale = run.score(groups, versions, tail)
            found = correlations(stale, fresh)
            rho = fidelity(stale, fresh)
            cells = [f"{fmean(rows):.3f} ({pstdev(rows):.3f})" for rows in found.values()]
            table.add_row(str(lag), str(tail), *cells, f"{rho:.3f}")
            for kind, rows in found.items():
                figures[f"{kind}.lag{lag}.tail{tail}"] = fmean(rows)
                figures[f"{kind}.lag{lag}.tail{tail}.spread"] = pstdev(rows)
            figures[f"rho.lag{lag}.tail{tail}"] = rho
    Console().print(table)
    figures["target.lag1"] = figures[f"edit.lag1.tail{full}"]
    return figures


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--versions", type=int, default=12)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=24)
    args = parser.parse_args()
    run = Recorder(FLAGS | {"run.iterations": str(args.versions)}, Hardware())
    run.train_versions()
    figures = measure(run, args.versions, args.prompts, args.seeds)
    return finish("Staleness", figures, args, at_least={"target.lag1": TARGET})


if __name__ == "__main__":
    sys.exit(main())
