"""A race for real: to the same held-out reward, on a reserved core with and without spot VMs.

    python benchmarks/race.py --trace FILE [--out FOLDER] [--variants reserved,...]
                              [--repeats 3] [--seed 1] [--target 0.7] [--json FILE] [--check]

The embedded model trains with the demo's settings, by the commands that users type. The reserved
"GPU" is one core, with daemon and trainer; spot "GPUs" are agents that share another, and come and
go as a spot trace has it, sped up. Each variant meets the same losses, and pairs share their seed.
Each finished run is kept in --out and not repeated, so that a race can be interrupted and gone on
with; `timeline.svg` there shows what each GPU did.

Time and cost are those from the first rollout to the target, between two evaluations by a straight
line; evaluations, and VMs that load after a loss, are in them. Start-up is told beside it.

Targets (--check): `spotlight` against `reserved` at least 2 times sooner, and 3 times cheaper.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from _race_figures import BASE, Record, compare
from _race_picture import draw
from _race_run import Settings, race
from _race_words import CHEAPER, SOONER, SYSTEM, describe, explain, make_table
from _report import finish, make_parser

from spotlightd.errors import ExitCode, InputError, SpotlightError, UsageError
from spotlightd.sections import LedgerSection
from spotlightd.simulate.variants import Variant, find_variant

NOTHING_TO_MEASURE = 69
UNDER_WAY = "run-under-way"
"""Folder in --out with state and logs of the newest run; each run begins by removing it."""
PRICES = LedgerSection()


def choose(name: str) -> Variant:
    """Raises UsageError for a variant that no two cores can play."""
    variant = find_variant(name)
    missing = (
        "there is one reserved core" if variant.reserved_factor > 1
        else "a VM here has one worker, and no groups anyway" if variant.spot and not variant.groups
        else "peers cannot be switched off in real agents" if not variant.peers
        else ""
    )  # fmt: skip
    if missing:
        raise UsageError(f"variant '{name}' cannot race: {missing}; it is in the simulator")
    return variant


def load(path: Path, settings: Settings) -> Record:
    """Read a finished run. Raises InputError where it was run otherwise."""
    record: Record = json.loads(path.read_text())
    wanted = json.loads(json.dumps(vars(settings)))
    different = [key for key in wanted if record["settings"].get(key) != wanted[key]]
    if different:
        raise InputError(
            f"{path} was run with another {', '.join(different)}: choose another --out for these "
            f"settings"
        )
    return record


def race_all(
    args: argparse.Namespace, settings: Settings, cores: tuple[int, int]
) -> Iterator[Record]:
    """Yield every run, seed by seed; those that are missing are run now, until --most of them."""
    left = args.most
    for seed in range(args.seed, args.seed + args.repeats):
        for variant in map(choose, args.variants.split(",")):
            path = args.out / f"{variant.name}-{seed}.json"
            if not path.exists():
                if left == 0:
                    continue
                left -= 1
                record = race(args.out / UNDER_WAY, variant, seed, settings, args.trace, cores)
                path.write_text(json.dumps(record))
            record = load(path, settings)
            print(describe(record), flush=True)
            yield record


def make_arguments() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    parser.add_argument("--trace", type=Path, help="spot trace that the VMs follow")
    parser.add_argument("--out", type=Path, default=Path("race-out"))
    parser.add_argument("--variants", default=f"{BASE},reserved_subset,spot,{SYSTEM}")
    parser.add_argument("--repeats", type=int, default=3, help="seeds")
    parser.add_argument("--seed", type=int, default=1, help="the first of them")
    parser.add_argument("--target", type=float, default=0.7, help="held-out reward")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a run at most")
    parser.add_argument("--iterations", type=int, default=60, help="of a run at most")
    parser.add_argument("--evaluate-every", type=int, default=4)
    parser.add_argument("--speed", type=float, default=20.0, help="of the trace")
    parser.add_argument("--vms", type=int, default=2, help="spot VMs that share the spot core")
    parser.add_argument(
        "--train-size", type=int, default=4, help="rollouts of a group that train, of 16"
    )
    parser.add_argument("--most", type=int, default=-1, help="new runs at most; -1: all")
    return parser


def main() -> int:
    args = make_arguments().parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if args.trace is None or len(cores) < 2:
        why = "no --trace is given" if args.trace is None else "two cores are needed"
        print(f"race: {why}: there is nothing to measure")
        return NOTHING_TO_MEASURE
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    settings = Settings(
        trace=args.trace.stem,
        speed=args.speed,
        target=args.target,
        limit_s=args.limit,
        iterations=args.iterations,
        evaluate_every=args.evaluate_every,
        vms=args.vms,
        reserved_price=PRICES.reserved_price,
        spot_price=PRICES.spot_price / args.vms,
        train_size=args.train_size,
    )
    # What was started has sessions of its own: it ends only with the race's word.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        records = list(race_all(args, settings, (cores[0], cores[1])))
    except SpotlightError as error:
        print(f"race: {error}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        print("race: interrupted: the same command goes on with the runs that are missing")
        return int(ExitCode.TRY_AGAIN)
    if not records:
        print("race: no run is there yet")
        return 0
    return report(records, args)


def report(records: list[Record], args: argparse.Namespace) -> int:
    """Print figures and bounds, draw the picture, and return the exit code."""
    runs = {(record["variant"], record["seed"]): record for record in records}
    figures = compare(runs)
    (args.out / "timeline.svg").write_text(draw(records))
    for sentence in explain(runs, figures):
        print(sentence)
    targets = {f"{SYSTEM}.sooner": SOONER, f"{SYSTEM}.cheaper": CHEAPER}
    if args.check and not figures.keys() >= targets.keys():
        print(f"missed: there is no pair of {BASE} and {SYSTEM} to check")
        return 1
    checked = {name: limit for name, limit in targets.items() if name in figures}
    title = f"to a held-out reward of {args.target:g}; ratios against {BASE}, paired by seed"
    return finish(title, figures, args, at_least=checked, table=make_table(title, figures))


if __name__ == "__main__":
    sys.exit(main())
