"""The cells of the simulated comparison: one run each, computed once and kept.

A cell is a variant of the system, a picture's side, a task, a trace and a seed. Its outcome is kept
in a file named by a digest of all that decides it: the configuration, the assumptions, the trace,
the seed, the variant and the sources of the simulator and of what it drives. So a run that was
stopped goes on, and nothing stale is ever read.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import track

from spotlightd.config import Config
from spotlightd.simulate.assumptions import Assumptions, load_assumptions
from spotlightd.simulate.command import configure
from spotlightd.simulate.outcome import Outcome
from spotlightd.simulate.run import Simulation
from spotlightd.simulate.traces import Trace
from spotlightd.simulate.variants import VARIANTS, Variant

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs/qwen-image-ocr.toml"
CACHE = ROOT / "results-cache"
SOURCES = (
    "spotlightd/simulate",
    "spotlightd/planner",
    "spotlightd/fleet",
    "spotlightd/weights",
    "spotlightd/wire",
    "spotlightd/dit/degrees.py",
    "spotlightd/config.py",
    "spotlightd/sections.py",
)
"""What a simulated run executes; `learning_curve.json` among it."""
MOST_ITERATIONS = 300
TASKS: Mapping[str, Mapping[str, str]] = {
    "ocr": {},
    "composition": {
        "rewards.train": "composition_strict",
        "rewards.report": '["composition"]',
        "planner.rank_by": "composition",
    },
}
"""By name: what the task changes in the configuration. Composition trains on 0 or 1."""


@dataclass(frozen=True)
class Case:
    """A departure from the published setting, for its sensitivity."""

    title: str
    changes: Mapping[str, str] = field(default_factory=dict)
    """Keys of the configuration."""
    given: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Keys of the assumptions."""
    reserved_rolls_out: bool = True


CASES = {
    "steps_20": Case("20 denoising steps instead of 10", {"sampler.num_steps": "20"}),
    "steps_50": Case("50 denoising steps", {"sampler.num_steps": "50"}),
    "steps_50_reserved_train_only": Case(
        "50 denoising steps, reserved GPUs only train",
        {"sampler.num_steps": "50"},
        reserved_rolls_out=False,
    ),
    "reserved_train_only": Case("reserved GPUs only train", reserved_rolls_out=False),
    "training_step_250_s": Case(
        "a training step of 250 s instead of 360 s", given={"train": {"step_s": 250.0}}
    ),
    "training_step_200_s": Case("a training step of 200 s", given={"train": {"step_s": 200.0}}),
    "boot_600_s": Case("boots of 600 s instead of 120 s", given={"boot": {"boot_s": 600.0}}),
}
"""By name. None of them is used for any figure but its own."""
SIZES = {
    f"{trained}_of_{size}": Case(
        f"{trained} of {size}",
        {"planner.group_size": str(size), "planner.train_size": str(trained)},
    )
    for size, trained in ((16, 8), (16, 4), (16, 2), (8, 4), (8, 2))
}
"""By name: how many of a group's rollouts train; departures too."""


@dataclass(frozen=True)
class Cell:
    variant: str
    side: int
    """Pixels, of a square picture."""
    task: str
    trace: str
    """Empty where the variant has no spot GPUs."""
    seed: int
    case: str = ""
    """Name of a departure from the published setting; empty: none."""

    def __str__(self) -> str:
        words = (self.variant, f"{self.side} px", self.task, self.trace, self.case)
        return ", ".join(word for word in (*words, f"seed {self.seed}") if word)


def make_cell(variant: str, side: int, task: str, trace: str, seed: int, case: str = "") -> Cell:
    """A cell; those that differ only in a trace that nobody follows are one."""
    return Cell(variant, side, task, trace if VARIANTS[variant].spot else "", seed, case)


@cache
def code_version() -> str:
    """Return a digest of the sources that a run executes."""
    digest = hashlib.blake2b(digest_size=16)
    for name in SOURCES:
        path = ROOT / name
        files = (
            [path] if path.is_file() else sorted(path.rglob("*.py")) + sorted(path.rglob("*.json"))
        )
        for file in files:
            digest.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    return digest.hexdigest()


class Cells:
    """Outcomes of cells, from the cache or computed.

    Args:
        traces: by name.
        assumptions: a file with what differs from the shipped ones.
    """

    def __init__(
        self,
        traces: Mapping[str, Trace],
        assumptions: Path | None = None,
        folder: Path = CACHE,
        changes: Mapping[str, str] | None = None,
    ) -> None:
        self._traces, self._assumptions = traces, assumptions
        self._folder = folder
        self._changes = changes or {}

    def _inputs(self, cell: Cell) -> tuple[Config, Assumptions, Variant, Trace]:
        case = (CASES | SIZES)[cell.case] if cell.case else Case("as published")
        variant = VARIANTS[cell.variant]
        if variant.spot and not case.reserved_rolls_out:
            variant = replace(variant, reserved_rolls_out=False)
        settings = {
            "run.seed": str(cell.seed),
            "run.iterations": str(MOST_ITERATIONS),
            "run.evaluate_every": "0",
            "run.evaluate_prompts": "1",
            "sampler.height": str(cell.side),
            "sampler.width": str(cell.side),
            **TASKS[cell.task],
            **case.changes,
            **self._changes,
        }
        given = load_assumptions(self._assumptions, **{k: dict(v) for k, v in case.given.items()})
        # Without spot GPUs no trace is followed, whichever stands here.
        trace = self._traces[cell.trace] if cell.trace else Trace("none", (), 0.0)
        return configure(CONFIG, settings, variant), given, variant, trace

    def key(self, cell: Cell) -> str:
        """Return a digest of all that decides the cell's outcome."""
        config, given, variant, trace = self._inputs(cell)
        parts = (config, given, variant.name, trace.name, trace.changes, cell.seed)
        digest = hashlib.blake2b(code_version().encode(), digest_size=16)
        for part in parts:
            digest.update(msgspec.json.encode(part, order="deterministic") + b"\n")
        return digest.hexdigest()

    def __getitem__(self, cell: Cell) -> Outcome:
        path = self._folder / f"{self.key(cell)}.json"
        if path.exists():
            return msgspec.json.decode(path.read_bytes(), type=Outcome)
        config, given, variant, trace = self._inputs(cell)
        outcome = Simulation(config, given, variant, trace, cell.seed).run()
        self._folder.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(".part")
        written.write_bytes(msgspec.json.encode(outcome))
        written.replace(path)
        return outcome

    def known(self, cell: Cell) -> bool:
        return (self._folder / f"{self.key(cell)}.json").exists()

    def all_of(self, cells: Sequence[Cell], console: Console) -> dict[Cell, Outcome]:
        """Return the outcome of each, with progress: a bar on a terminal, otherwise lines."""
        missing = [cell for cell in cells if not self.known(cell)]
        console.print(f"{len(cells)} cells, {len(cells) - len(missing)} of them kept from before")
        for cell in self._watched(missing, console):
            self[cell]
        return {cell: self[cell] for cell in cells}

    def _watched(self, cells: Sequence[Cell], console: Console) -> Iterable[Cell]:
        if console.is_terminal:
            yield from track(cells, "simulating", console=console)
            return
        for number, cell in enumerate(cells, 1):
            print(f"{number}/{len(cells)} {cell}", flush=True)
            yield cell
