"""The store: acknowledged commits a second with synchronous=FULL, on this disk.

    python benchmarks/store.py [--json FILE] [--check] [--seconds 4]

A commit is a rollout's result with its trajectory (45 kB) and image (1 kB): two blobs, fsynced, and
one transaction. One writer waits for each acknowledgement before the next commit; sixteen share
transactions (group commit). A bare fsync of a file as large is the disk's own limit, measured in
the same run.

Target (--check): 200 acknowledged commits a second with sixteen writers.
"""

import os
import sys
import tempfile
import threading
import time
from pathlib import Path

from _report import finish, make_parser

from spotlightd.atomic import write_file
from spotlightd.store.store import Store
from spotlightd.wire.messages import Result
from spotlightd.wire.sampling import Request, SamplerSettings

TARGET = 200
WRITERS = 16
TRAJECTORY_BYTES, IMAGE_BYTES = 45_000, 1_000
SAMPLER = SamplerSettings((1.0, 0.0), "flow_cps", 0.7, (), 1.0, 32, 128)


def commit_for(store: Store, name: str, seconds: float) -> int:
    """Commit one result after the other; return how many were acknowledged."""
    deadline, count = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        request_id = f"{name}-{count}"
        request = Request(request_id, "rollout", 0, "p", 'a "A"', "A", count, 0, SAMPLER)
        # Nobody waits for these two; they are durable before what follows them.
        store.save_cycle("{}", 0, [request])
        store.set_leases([(request_id, count + 1, name)])
        result = Result(request_id, count + 1, {"ocr": 0.5}, "A", 0.1, 0)
        done = store.commit_result(
            result, os.urandom(TRAJECTORY_BYTES), os.urandom(IMAGE_BYTES), name
        )
        assert done.result()[0] == "committed"
        count += 1
    return count


def commits_per_second(folder: Path, writers: int, seconds: float) -> float:
    store = Store(folder)
    try:
        store.begin_run("benchmark", "{}").result()
        counts = [0] * writers

        def work(index: int) -> None:
            counts[index] = commit_for(store, f"writer{index}", seconds)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(writers)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        elapsed = time.monotonic() - began
        assert len(store.results()) == sum(counts), "a commit was acknowledged and is not there"
        return sum(counts) / elapsed
    finally:
        store.close()


def bare_fsyncs_per_second(folder: Path, seconds: float) -> float:
    """Write, fsync and rename files of a trajectory's size, and nothing else."""
    deadline, count = time.monotonic() + seconds, 0
    data = os.urandom(TRAJECTORY_BYTES)
    while time.monotonic() < deadline:
        write_file(folder / f"{count}", data)
        count += 1
    return count / seconds


def measure(seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="spotlight-store-") as name:
        root = Path(name)
        bare = bare_fsyncs_per_second(root / "bare", seconds)
        one = commits_per_second(root / "one", 1, seconds)
        many = commits_per_second(root / "many", WRITERS, seconds)
    return {
        "bare_durable_files_per_second": bare,
        "commits_per_second_1_writer": one,
        f"commits_per_second_{WRITERS}_writers": many,
        "group_commit_gain": many / one,
        "one_writer_over_bare_files": one / bare,
    }


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    args = parser.parse_args()
    figures = measure(args.seconds)
    return finish(
        "Store, synchronous=FULL",
        figures,
        args,
        at_least={f"commits_per_second_{WRITERS}_writers": TARGET},
        at_most=None,
    )


if __name__ == "__main__":
    sys.exit(main())
