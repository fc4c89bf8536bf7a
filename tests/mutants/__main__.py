"""Breaks the fleet's decisions one place at a time, and counts what the tests notice.

    make mutants [ARGS="--only ledger --minutes 2"]

Each mutant lives in a child forked from this process, which has imported pytest and hypothesis
already: the module is compiled from the mutated source there, and its tests run until the first
failure. Nothing is written. A mutant is killed by a failing test, or by keeping the tests busy for
too long. Survivors are listed with their diffs; exit code 1 where fewer than 85 % are killed.
"""

import argparse
import ast
import difflib
import os
import random
import signal
import sys
import time
import types
from dataclasses import dataclass, field
from pathlib import Path

# Imported for the children, so that none of them has to.
import hypothesis.stateful
import pytest

from tests.mutants.breaks import Mutant, mutants_of

ROOT = Path(__file__).parents[2]
FLEET = "spotlightd.fleet"
TARGET = 0.85
TESTS_S = 40
"""A mutant under which the tests take longer is killed; unbroken code needs a fifth of it."""
HISTORY = "test_histories.py::test_no_history_loses_or_doubles_anything"
SUITES = {
    "ledger": ["test_ledger.py", HISTORY],
    "looks": ["test_membership.py", HISTORY],
    "membership": ["test_membership.py", HISTORY],
    "pullers": ["test_pullers.py", "test_last_wave.py", HISTORY, "test_scheduler.py"],
    "queues": [HISTORY, "test_scheduler.py"],
    "last_wave": ["test_last_wave.py", HISTORY],
    "scheduler": ["test_last_wave.py", HISTORY, "test_scheduler.py"],
}
"""Tests of each module, the quick ones first. What checks invariants (`invariants.py`) is not
mutated: it decides nothing, and the tests themselves rest on it.
"""


@dataclass
class Tally:
    """What became of one module's mutants."""

    killed: int = 0
    not_tried: int = 0
    survivors: list[Mutant] = field(default_factory=list)

    def __str__(self) -> str:
        tried = self.killed + len(self.survivors)
        text = f"{self.killed} of {tried} killed ({self.killed / max(tried, 1):.1%})"
        return text + (f", {self.not_tried} not tried for want of time" if self.not_tried else "")


def tests_pass(name: str, source: str) -> bool:
    """Run a module's tests against `source` in its place, in a child process."""
    pid = os.fork()
    if pid == 0:
        _child(f"{FLEET}.{name}", source, [f"tests/fleet/{test}" for test in SUITES[name]])
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) == pytest.ExitCode.OK


def _child(module: str, source: str, tests: list[str]) -> None:
    code: int = pytest.ExitCode.INTERNAL_ERROR
    try:
        signal.alarm(TESTS_S)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        # The module's users must be imported anew, to see it.
        assert not any(loaded.startswith(f"{FLEET}.") for loaded in sys.modules)
        mutant = types.ModuleType(module)
        sys.modules[module] = mutant
        exec(compile(source, f"<mutant of {module}>", "exec"), mutant.__dict__)
        options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        # hypothesis came before pytest could rewrite its asserts; nobody needs them rewritten.
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        code = pytest.main([*options, *tests])
    finally:
        os._exit(code)


def try_module(name: str, deadline: float, rng: random.Random) -> Tally:
    """Try every mutant of a module, in random order, until the time is up."""
    source = path_of(name).read_text()
    if not tests_pass(name, source):
        raise SystemExit(f"the tests of {name} fail without any mutation: mend that first")
    mutants = mutants_of(source)
    # In any order, so that a run that is cut short has tried a fair sample.
    rng.shuffle(mutants)
    tally = Tally()
    for mutant in mutants:
        if time.monotonic() > deadline:
            tally.not_tried += 1
        elif tests_pass(name, mutant.source):
            tally.survivors.append(mutant)
        else:
            tally.killed += 1
    return tally


def path_of(name: str) -> Path:
    return ROOT / FLEET.replace(".", "/") / f"{name}.py"


def show(name: str, tally: Tally) -> None:
    path = path_of(name)
    clean = ast.unparse(ast.parse(path.read_text())).splitlines()
    for mutant in sorted(tally.survivors, key=lambda mutant: mutant.line):
        print(f"\nsurvived: {path.relative_to(ROOT)}:{mutant.line}: {mutant.what}")
        diff = difflib.unified_diff(clean, mutant.source.splitlines(), n=1, lineterm="")
        print("\n".join(f"    {line}" for line in list(diff)[3:]))
    print(f"\n{path.relative_to(ROOT)}: {tally}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", choices=SUITES, help="one module instead of all")
    parser.add_argument("--minutes", type=float, default=10.0, help="stop trying after so long")
    parser.add_argument("--seed", type=int, default=0, help="of the order of trying")
    args = parser.parse_args()
    os.chdir(ROOT)
    os.environ.update(HISTORIES="3", OMP_NUM_THREADS="1")
    assert hypothesis.stateful
    rng, began = random.Random(args.seed), time.monotonic()
    names = [args.only] if args.only else list(SUITES)
    sizes = [len(mutants_of(path_of(name).read_text())) for name in names]
    total = Tally()
    for index, name in enumerate(names):
        # Time by the number of mutants; what a module leaves over goes to the next.
        share = sum(sizes[: index + 1]) / sum(sizes)
        tally = try_module(name, began + 60 * args.minutes * share, rng)
        show(name, tally)
        total.killed += tally.killed
        total.not_tried += tally.not_tried
        total.survivors += tally.survivors
    score = total.killed / max(total.killed + len(total.survivors), 1)
    print(f"\nall: {total}; at least {TARGET:.0%} wanted; {time.monotonic() - began:.0f} s")
    return 0 if score >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
