"""The kernels against eager torch, torch.compile and torch's attention, on one GPU.

    python benchmarks/kernels.py [--json FILE] [--check] [--op NAME ...] [--minutes 6]

Shapes are those of Qwen-Image, SD3.5-M and FLUX for one image of 512 and of 1280 pixels, in bf16.
First each op is compared with its reference in fp32; an op that is wrong is not timed. Then come
medians over repeats with a cold cache, and what they amount to: bytes or operations a second, as a
share of what a large copy and a large matrix product reach on this GPU in the same run. When the
minutes are nearly over, compiling rivals is left out first.

Without a CUDA device it says so and exits with 69.

Target (--check): no wrong op, and no op that CUDA tensors take by default loses to eager torch.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from _kernel_cases import OPS, SHAPES, USED_BY_DEFAULT, Cost, Shape, cost
from _kernel_contests import Contest, contest, largest_error
from _report import make_parser
from rich.console import Console
from rich.table import Table
from torch import Tensor

NO_DEVICE = 69
"""EX_UNAVAILABLE of sysexits.h."""
COMPILING_ENDS = 0.75
"""Share of the time after which nothing more is compiled."""


@dataclass(frozen=True)
class Ceilings:
    """What this GPU reaches: a gigabyte copied, and a large product in bf16."""

    bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True)
class Row:
    op: str
    shape: str
    error: float
    """Largest, relative to the largest true value."""
    tolerance: float
    ours_us: float | None = None
    """Medians; None where the op was wrong, or time was up."""
    eager_us: float | None = None
    compiled_us: float | None = None
    bytes: int = 0
    flops: int = 0
    ceiling_share: float | None = None
    """Of the ceiling that the byte and operation model says is the lower one."""

    @property
    def right(self) -> bool:
        return self.error <= self.tolerance


def ceiling_share(figures: Cost, seconds: float, ceilings: Ceilings) -> float:
    """Return the time that the nearer ceiling allows, over the time taken."""
    bound = max(figures.bytes / ceilings.bytes_per_s, figures.flops / ceilings.flops_per_s)
    return bound / seconds


def ratio(ours: float | None, rival: float | None) -> float | None:
    return None if ours is None or rival is None else rival / ours


def missed_targets(rows: list[Row]) -> list[str]:
    """Return a sentence for each wrong op, and each default op that loses to eager torch."""
    missed = [
        f"{row.op} on {row.shape} is wrong by {row.error:.2g} (at most {row.tolerance:g})"
        for row in rows
        if not row.right
    ]
    for row in rows:
        against = ratio(row.ours_us, row.eager_us)
        if row.op in USED_BY_DEFAULT and against is not None and against < 1:
            missed.append(f"{row.op} on {row.shape} takes {1 / against:.2f} times eager torch")
    return missed


def median_us(call: Callable[[], object]) -> float:
    """Return the median time of a call in microseconds, its inputs not in the cache."""
    from triton.testing import do_bench

    return 1000 * float(do_bench(call, warmup=5, rep=30, return_mode="median"))


def measure_ceilings(device: torch.device) -> Ceilings:
    source = torch.empty(2**28, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / (1e-6 * median_us(lambda: target.copy_(source)))
    a, b = (torch.randn(8192, 8192, dtype=torch.bfloat16, device=device) for _ in range(2))
    multiplied = 2 * 8192**3 / (1e-6 * median_us(lambda: a @ b))
    return Ceilings(copied, multiplied)


def check(fight: Contest) -> tuple[float, Callable[..., tuple[Tensor, ...]]]:
    """Return our error, and the rival after it too was found to compute the op.

    Raises:
        ArithmeticError: the rival computes something else: the benchmark itself is wrong.
    """
    truth = fight.truth()
    if fight.eager_tolerance is not None:
        error = largest_error(fight.eager(*fight.inputs), truth, fight.compared)
        if error > fight.eager_tolerance:
            raise ArithmeticError(f"eager torch is off by {error:.2g}, it computes another op")
    return largest_error(fight.ours(), truth, fight.compared), fight.eager


def measure(op: str, shape: Shape, device: torch.device, ceilings: Ceilings, compiles: bool) -> Row:
    fight = contest(op, shape, device, torch.bfloat16)
    figures = cost(op, shape)
    error, eager = check(fight)
    row = Row(op, shape.name, error, fight.tolerance, bytes=figures.bytes, flops=figures.flops)
    if not row.right:
        return row
    ours = median_us(fight.ours)
    compiled = None
    if compiles:
        torch.compiler.reset()
        program = torch.compile(eager, dynamic=False)
        compiled = median_us(lambda: program(*fight.inputs))
    return Row(
        **{
            **asdict(row),
            "ours_us": ours,
            "eager_us": median_us(lambda: eager(*fight.inputs)),
            "compiled_us": compiled,
            "ceiling_share": ceiling_share(figures, 1e-6 * ours, ceilings),
        }
    )


def shown(value: float | None, pattern: str) -> str:
    return "-" if value is None else pattern.format(value)


def print_table(rows: list[Row], ceilings: Ceilings, device_name: str) -> None:
    table = Table(
        title=f"{device_name}: copy {ceilings.bytes_per_s / 1e12:.2f} TB/s, "
        f"product {ceilings.flops_per_s / 1e12:.0f} TFLOP/s"
    )
    for name in ("op", "shape"):
        table.add_column(name)
    for name in ("error", "us", "eager / ours", "compiled / ours", "of ceiling"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.op,
            row.shape,
            f"{row.error:.1e}" + ("" if row.right else " WRONG"),
            shown(row.ours_us, "{:.1f}"),
            shown(ratio(row.ours_us, row.eager_us), "{:.2f}"),
            shown(ratio(row.ours_us, row.compiled_us), "{:.2f}"),
            shown(row.ceiling_share, "{:.0%}"),
        )
    Console(width=100).print(table)


def print_summary(rows: list[Row]) -> None:
    for op in dict.fromkeys(row.op for row in rows):
        ratios = [ratio(row.ours_us, row.eager_us) for row in rows if row.op == op]
        known = [value for value in ratios if value is not None]
        if known:
            print(f"{op}: {statistics.median(known):.2f} times as fast as eager torch (median)")


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--op", nargs="+", choices=list(OPS), default=list(OPS))
    parser.add_argument("--minutes", type=float, default=6.0)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print(
            "kernels: there is no CUDA device here, and interpreted kernels have no speed to "
            "measure; run this on a GPU host (docs/kernels.md has the byte model)",
            file=sys.stderr,
        )
        return NO_DEVICE
    device = torch.device("cuda")
    began = time.monotonic()
    ceilings = measure_ceilings(device)
    rows: list[Row] = []
    for op in args.op:
        for shape in SHAPES:
            spent = (time.monotonic() - began) / (60 * args.minutes)
            if spent < 1:
                rows.append(measure(op, shape, device, ceilings, spent < COMPILING_ENDS))
    name = torch.cuda.get_device_name(device)
    print_table(rows, ceilings, name)
    print_summary(rows)
    untimed = len(args.op) * len(SHAPES) - len(rows)
    if untimed:
        print(f"time was up: {untimed} cases were left out")
    if args.json:
        record = {
            "device": name,
            "torch": torch.__version__,
            "ceilings": asdict(ceilings),
            "rows": [asdict(row) for row in rows],
        }
        args.json.write_text(json.dumps(record, indent=2) + "\n")
    missed = missed_targets(rows)
    for sentence in missed:
        print(f"missed: {sentence}")
    wrong = any(not row.right for row in rows)
    return 1 if wrong or (args.check and missed) else 0


if __name__ == "__main__":
    sys.exit(main())
