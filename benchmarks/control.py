"""What looking at a run costs as it grows: the same questions at 1,000 and at 100,000 iterations.

    python benchmarks/control.py [--json FILE] [--check] [--long 100000] [--short 1000]

Each iteration has 24 figures and 8 trajectories; every hundredth is evaluated. Asked are what
`status` takes from the store, a page of trajectories, a curve of 300 points, and, as a slow twin of
the first, the counts taken row by row. Each is asked five times and the median counts.

Target (--check): the status of the long run costs at most 3 times the short one's.
"""

import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from _report import finish, make_parser

from spotlightd.store.history import History
from spotlightd.store.store import Store
from spotlightd.wire.sampling import Request, SamplerSettings

TIMES = 5
FIGURES, TRAJECTORIES, EVALUATED_EVERY = 24, 8, 100
TARGET = 3.0
SAMPLER = SamplerSettings((1.0, 0.0), "flow_cps", 0.7, (), 1.0, 32, 128)


def write_run(state_dir: Path, iterations: int) -> None:
    Store(state_dir).close()
    database = sqlite3.connect(state_dir / "spotlight.db")
    body = msgspec.msgpack.encode(
        Request("r", "rollout", 0, "p", 'a "A"', "A", 1, 0, SAMPLER)
    )  # the same for all: what it holds is not looked into
    with database:
        database.executemany(
            "INSERT INTO metric VALUES (?,?,?)",
            (
                (i, "control.ocr" if n == 0 else f"figure.{n}", float(i))
                for i in range(iterations)
                for n in range(FIGURES)
            ),
        )
        database.executemany(
            "INSERT INTO metric VALUES (?, 'held_out.ocr', 0.5)",
            ((i,) for i in range(0, iterations, EVALUATED_EVERY)),
        )
        names = [f"{i}-{n}" for i in range(iterations) for n in range(TRAJECTORIES)]
        database.executemany(
            "INSERT INTO request (request_id, iteration, kind, body, state) "
            "VALUES (?,?,'rollout',?,'done')",
            ((name, int(name.partition("-")[0]), body) for name in names),
        )
        database.executemany(
            "INSERT INTO result VALUES (?,1,'{\"ocr\": 0.5}','A','','','a',0,?)",
            ((name, float(number)) for number, name in enumerate(names)),
        )
    database.close()


def status(history: History) -> None:
    """What the daemon's `status` asks of the store."""
    history.counts()
    assert history.lost() == 0
    history.latest("control.ocr")
    for version in history.ends_of("held_out.ocr", 20):
        history.figures(version, "held_out.")


def median_ms(question: Callable[[], object]) -> float:
    times = []
    for _ in range(TIMES):
        began = time.perf_counter()
        question()
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


def measure(iterations: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="spotlight-control-") as name:
        write_run(Path(name), iterations)
        history, store = History(Path(name)), Store(Path(name))
        figures = {
            "status_ms": median_ms(lambda: status(history)),
            "page_ms": median_ms(lambda: history.samples(iterations // 2, None, None, 0, 50)),
            "curve_ms": median_ms(lambda: history.curve("control.ocr", 300)),
            "row_by_row_ms": median_ms(lambda: (store.request_counts(), store.count_lost())),
        }
        history.close()
        store.close()
    return figures


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--long", type=int, default=100_000)
    parser.add_argument("--short", type=int, default=1000)
    args = parser.parse_args()
    short, long = measure(args.short), measure(args.long)
    figures = {f"short_{name}": value for name, value in short.items()}
    figures |= {f"long_{name}": value for name, value in long.items()}
    figures |= {
        f"long_over_short_{name.removesuffix('_ms')}": long[name] / short[name] for name in short
    }
    title = f"Looking at a run of {args.short:,} and of {args.long:,} iterations"
    return finish(title, figures, args, at_most={"long_over_short_status": TARGET})


if __name__ == "__main__":
    sys.exit(main())
