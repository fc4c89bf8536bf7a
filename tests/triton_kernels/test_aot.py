"""Compiling ahead of time: what it reads, what it refuses, and that it sees a real spill."""

import dataclasses
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def aot():
    spec = importlib.util.spec_from_file_location("aot", ROOT / "scripts" / "aot.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["aot"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["aot"]


def test_registers_and_stack_are_read(aot):
    text = "Function step:\n  REG:122 STACK:72 SHARED:0 LOCAL:0 CONSTANT[0]:592 TEXTURE:0\n"
    assert aot.read_usage(text) == (122, 72)
    with pytest.raises(ValueError, match="no resource usage"):
        aot.read_usage("Function step:\n")


@pytest.mark.parametrize(
    ("usage", "reason", "expected"),
    [
        ({}, "", ""),
        ({"spilled_bytes": 8}, "", "spills 8 bytes"),
        ({"spilled_bytes": 8}, "rare, and still faster than smaller blocks", ""),
        ({"shared_bytes": 180 * 1024}, "", "180 KiB of shared memory, 163 are there"),
        ({"failure": "CompilationError: x"}, "rare", "CompilationError: x"),
    ],
)
def test_what_is_refused_and_why(aot, usage, reason, expected):
    why = aot.verdict(aot.Usage("k", "sm_80", **usage), reason)
    assert expected in why and bool(why) == bool(expected)


def test_a_reason_that_is_no_longer_needed_is_named(aot):
    usages = [aot.Usage("a", "sm_80"), aot.Usage("b", "sm_80", spilled_bytes=4)]
    assert aot.needless_reasons(usages, {"a": "old", "b": "still", "c": ""}) == ["a"]


def test_every_op_has_variants_and_none_is_forgotten(aot):
    kernels = {path.parent.name for path in (ROOT / "triton_kernels").glob("*/kernel.py")}
    assert kernels == set(aot.OPS)
    for variant in aot.variants():
        assert {*variant.types, *variant.constants} == set(variant.kernel.arg_names), variant.name


def test_a_kernel_that_is_given_too_few_registers_is_seen_to_spill(aot):
    variant = next(v for v in aot.variants() if v.name.startswith("adaln modulate backward 4096"))
    starved = dataclasses.replace(variant, options={**variant.options, "maxnreg": 24})
    usage = aot.compile_variant(starved, "sm_90")
    assert usage.failure == ""
    assert usage.spilled_bytes > 0
    assert "spills" in aot.verdict(usage, "")


def test_a_kernel_that_does_not_compile_is_reported(aot):
    variant = next(v for v in aot.variants() if v.name.startswith("denoise sample"))
    broken = dataclasses.replace(variant, constants={**variant.constants, "L": 3})
    usage = aot.compile_variant(broken, "sm_90")
    assert usage.failure and aot.verdict(usage, "") == usage.failure


@pytest.mark.slow
def test_the_command_ends_with_what_it_found():
    command = [sys.executable, "scripts/aot.py", "--match", "noise with", "--targets", "sm_90"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "1 compilations of 1 variants, 0 bad" in done.stdout
