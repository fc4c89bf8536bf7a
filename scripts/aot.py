"""Compile every kernel, in every configuration that the code can choose, without a GPU.

    python scripts/aot.py [--match TEXT] [--json FILE] [--targets sm_80 sm_90 sm_100] [--jobs N]

Prints registers a thread, static and dynamic shared memory, and spilled bytes, the worst of each
over the targets. A kernel that spills fails unless its `Variant` says why it may; so does one that
does not compile, and one whose reason is no longer needed. Triton keeps what it has compiled
(`~/.triton`), so a second run takes seconds.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.table import Table

from triton_kernels.variants import Variant

OPS = ("noise", "denoise", "adaln", "qk_norm_rope", "attention", "ulysses")
TARGETS = ("sm_80", "sm_90", "sm_100")
SHARED_KIB = {"sm_80": 163, "sm_90": 227, "sm_100": 227}
"""Shared memory that one program may take (CUDA C++ Programming Guide, compute capabilities)."""


@dataclass(frozen=True)
class Usage:
    variant: str
    target: str
    registers: int = 0
    shared_bytes: int = 0
    spilled_bytes: int = 0
    """Stack a thread: none of the kernels has arrays, so all of it is spilled registers."""
    failure: str = ""


def variants() -> list[Variant]:
    """Return all variants of all ops; their names are unique."""
    found = [
        variant for op in OPS for variant in import_module(f"triton_kernels.{op}.kernel").VARIANTS
    ]
    assert len({variant.name for variant in found}) == len(found)
    return found


def read_usage(text: str) -> tuple[int, int]:
    """Return (registers, stack bytes) from what `cuobjdump -res-usage` prints for one kernel."""
    match = re.search(r"REG:(\d+) STACK:(\d+)", text)
    if match is None:
        raise ValueError(f"no resource usage in: {text!r}")
    return int(match[1]), int(match[2])


def compile_by_name(name: str, target: str) -> Usage:
    """Compile a variant in a process of its own: kernels cannot be sent, names can."""
    return compile_variant(next(variant for variant in variants() if variant.name == name), target)


def compile_variant(variant: Variant, target: str) -> Usage:
    """Compile one variant; a failure is returned and not raised, to report all of them."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    arguments = variant.kernel.arg_names
    signature = {
        argument: "constexpr" if argument in variant.constants else variant.types[argument]
        for argument in arguments
    }
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, argument in enumerate(arguments)
        if signature[argument].startswith("*")
    }
    source = ASTSource(variant.kernel, signature, dict(variant.constants), aligned)
    gpu = GPUTarget("cuda", int(target.removeprefix("sm_")), 32)
    try:
        compiled = triton.compile(source, target=gpu, options=dict(variant.options))
        with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
            cubin.write(compiled.asm["cubin"])
            cubin.flush()
            command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", cubin.name]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        registers, stack = read_usage(text)
    except Exception as error:  # whatever the compiler raises is this variant's result
        return Usage(variant.name, target, failure=f"{type(error).__name__}: {error}")
    return Usage(variant.name, target, registers, compiled.metadata.shared, stack)


def verdict(usage: Usage, spills_because: str) -> str:
    """Return why this result fails; empty where it is good."""
    if usage.failure:
        return usage.failure
    if usage.shared_bytes > SHARED_KIB[usage.target] * 1024:
        limit = SHARED_KIB[usage.target]
        return f"takes {usage.shared_bytes / 1024:.0f} KiB of shared memory, {limit} are there"
    if usage.spilled_bytes and not spills_because:
        return f"spills {usage.spilled_bytes} bytes, and its Variant gives no reason"
    return ""


def needless_reasons(usages: list[Usage], reasons: dict[str, str]) -> list[str]:
    """Return the variants that give a reason to spill, and spill nowhere."""
    spilling = {usage.variant for usage in usages if usage.spilled_bytes or usage.failure}
    return [name for name, reason in reasons.items() if reason and name not in spilling]


def print_table(usages: list[Usage], targets: list[str]) -> None:
    table = Table(title=f"compiled for {', '.join(targets)}: the most of any")
    table.add_column("kernel")
    for column in ("registers", "shared KiB", "spilled bytes"):
        table.add_column(column, justify="right")
    for name in dict.fromkeys(usage.variant for usage in usages):
        rows = [usage for usage in usages if usage.variant == name]
        table.add_row(
            name,
            str(max(row.registers for row in rows)),
            f"{max(row.shared_bytes for row in rows) / 1024:.1f}",
            str(max(row.spilled_bytes for row in rows)),
        )
    Console(width=100).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--match", default="", help="only variants whose name has this text")
    parser.add_argument("--json", type=Path, help="write every result to this file")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    chosen = [variant for variant in variants() if args.match in variant.name]
    work = [(v.name, target) for v in chosen for target in args.targets if target in v.targets]
    with ProcessPoolExecutor(args.jobs) as pool:
        usages = list(pool.map(compile_by_name, *zip(*work, strict=True), chunksize=4))
    print_table(usages, args.targets)
    if args.json:
        args.json.write_text(json.dumps([asdict(usage) for usage in usages], indent=2) + "\n")
    reasons = {variant.name: variant.spills_because for variant in chosen}
    bad = [
        f"{usage.variant} for {usage.target}: {why}"
        for usage in usages
        if (why := verdict(usage, reasons[usage.variant]))
    ]
    bad += [f"{name}: gives a reason to spill, and does not" for name in
            needless_reasons(usages, reasons)]  # fmt: skip
    for line in bad:
        print(line, file=sys.stderr)
    print(f"{len(usages)} compilations of {len(chosen)} variants, {len(bad)} bad")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
