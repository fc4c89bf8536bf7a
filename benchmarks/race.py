"""A race for real: to the same held-out reward, on a reserved core with and without spot VMs.

    python benchmarks/race.py --trace FILE [--out FOLDER] [--variants reserved,spot,spotlight]
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
import sys
from collections.abc import Iterator
from pathlib import Path

from _race_figures import BASE, Record, Runs, bounds, compare, phase_means, result_of
from _race_picture import draw
from _race_run import Settings, race
from _report import finish, make_parser

from spotlightd.errors import InputError, SpotlightError, UsageError
from spotlightd.sections import LedgerSection
from spotlightd.simulate.variants import Variant, find_variant

NOTHING_TO_MEASURE = 69
SYSTEM = "spotlight"
SOONER, CHEAPER = 2.0, 3.0
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
                record = race(args.out / "run", variant, seed, settings, args.trace, cores)
                path.write_text(json.dumps(record))
            record = load(path, settings)
            print(describe(record), flush=True)
            yield record


def describe(record: Record) -> str:
    found = result_of(record)
    reached = "reached" if found.reached else "NOT reached, counted with its whole length"
    losses = [how for _, _, how in record["losses"]]
    return (
        f"seed {record['seed']}, {record['variant']}: {record['settings']['target']:g} {reached}; "
        f"{found.seconds:.1f} s (and {found.start_up_s:.1f} s to start), {found.iterations:.1f} "
        f"iterations, {found.cost:.4f} {PRICES.currency} ({found.reserved_cost:.4f} reserved, "
        f"{found.spot_cost:.4f} spot); {len(losses)} VMs lost, {losses.count('silent')} without a "
        f"notice; {record['lost']} trajectories lost"
    )


def explain(runs: Runs, figures: dict[str, float]) -> Iterator[str]:
    """Yield what two cores allow, from the measured phases, and what the system made of it."""
    base = [record for (variant, _), record in runs.items() if variant == BASE]
    own = [record for (variant, _), record in runs.items() if variant == SYSTEM]
    if not base or not own:
        return
    phases, mine = phase_means(base), phase_means(own)
    rollout_s, train_s = phases.get("rollout", 0.0), phases.get("train", 0.0)
    ratio = PRICES.spot_price / PRICES.reserved_price
    limit = bounds(rollout_s, train_s, ratio, SOONER, CHEAPER)
    yield (
        f"An iteration on the reserved core alone is {rollout_s:.2f} s of rollouts and "
        f"{train_s:.2f} s of training. A second core that took half of the rollouts at no cost "
        f"would make it {limit.sooner:.2f} times as fast; {SOONER:g} times takes "
        f"{limit.fewer_needed:.2f} times fewer iterations as well."
    )
    fewer = figures.get(f"{SYSTEM}.fewer_iterations", 0.0)
    yield (
        f"Measured with {SYSTEM}: {mine.get('rollout', 0.0):.2f} s of rollouts, "
        f"{mine.get('train', 0.0):.2f} s of training, and {fewer:.2f} times fewer iterations."
    )
    yield (
        f"A spot core at {ratio:.2f} of the reserved one's price makes {SOONER:g} times as fast "
        f"{limit.cheaper:.2f} times cheaper, and one that is free {limit.cheaper_free:.2f} times: "
        f"{CHEAPER:g} times cheaper takes {limit.sooner_needed:.2f} times as fast."
    )


def make_arguments() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    parser.add_argument("--trace", type=Path, help="spot trace that the VMs follow")
    parser.add_argument("--out", type=Path, default=Path("race-out"))
    parser.add_argument("--variants", default=f"{BASE},spot,{SYSTEM}")
    parser.add_argument("--repeats", type=int, default=3, help="seeds")
    parser.add_argument("--seed", type=int, default=1, help="the first of them")
    parser.add_argument("--target", type=float, default=0.7, help="held-out reward")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a run at most")
    parser.add_argument("--iterations", type=int, default=60, help="of a run at most")
    parser.add_argument("--evaluate-every", type=int, default=4)
    parser.add_argument("--speed", type=float, default=20.0, help="of the trace")
    parser.add_argument("--vms", type=int, default=2, help="spot VMs that share the spot core")
    parser.add_argument("--most", type=int, default=-1, help="new runs at most; -1: all")
    return parser


def main() -> int:
    args = make_arguments().parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if args.trace is None or len(cores) < 2:
        print(
            "race: it takes two cores" if len(cores) < 2 else "race: no --trace is given",
            "there is nothing to measure",
            sep=": ",
        )
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
    )
    try:
        records = list(race_all(args, settings, (cores[0], cores[1])))
    except SpotlightError as error:
        print(f"race: {error}", file=sys.stderr)
        return int(error.exit_code)
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
    title = f"held-out reward {args.target:g}, {args.repeats} seeds; ratios are against {BASE}"
    return finish(title, figures, args, at_least=checked)


if __name__ == "__main__":
    sys.exit(main())
