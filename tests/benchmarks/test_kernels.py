"""The kernel benchmark without a GPU: its shapes and figures, and that it refuses what is wrong."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import _kernel_cases
    import _kernel_contests
    import kernels

    yield kernels
    for module in (_kernel_cases, _kernel_contests, kernels):
        sys.modules.pop(module.__name__)


@pytest.fixture
def small(bench):
    from _kernel_cases import Model, Shape

    return Shape(Model("small", 128, 4, 7), 48, batch=2)


def test_tokens_are_those_of_the_models(bench):
    counts = {shape.name: (shape.image_tokens, shape.tokens) for shape in bench.SHAPES}
    assert counts["Qwen-Image 512"] == (1024, 1280)
    assert counts["SD3.5-M 1280"] == (6400, 6733)
    assert counts["FLUX 1280"] == (6400, 6912)
    assert {shape.model.head_size for shape in bench.SHAPES} == {64, 128}


def test_bytes_and_operations_are_those_of_the_tensors(bench, small):
    tokens, channels = 9, 128
    assert small.image_tokens == tokens
    assert bench.cost("modulate", small).bytes == 2 * 2 * (2 * tokens * channels)
    assert bench.cost("gate_modulate", small).bytes == 4 * 2 * (2 * tokens * channels)
    assert bench.cost("denoise", small).bytes == (4 + 2 + 4 + 4) * 2 * tokens * 64
    rotation = 4 * 16 * 32
    assert bench.cost("qk_norm_rope", small).bytes == 2 * 4 * 2 * 16 * channels + rotation
    # q k^T and p v: 2 operations for each of 16 x 16 x 32 products, of 4 heads and 2 samples.
    assert bench.cost("attention", small).flops == 2 * 2 * 16 * 16 * 32 * 4 * 2


def test_no_op_moves_less_in_eager_torch(bench):
    for op in bench.OPS:
        for shape in bench.SHAPES:
            figures = bench.cost(op, shape)
            assert figures.eager_bytes >= figures.bytes * 0.99, (op, shape.name)


def test_the_documents_figures_are_the_models(bench):
    named = {
        "`denoise`": "denoise",
        "`qk_norm_rope`": "qk_norm_rope",
        "`adaln` modulate": "modulate",
        "`adaln` gate_residual": "gate_residual",
        "`adaln` gate_modulate": "gate_modulate",
        "`ulysses` pack or unpack": "pack_heads",
    }
    text = (ROOT / "docs" / "kernels.md").read_text()
    for title, op in named.items():
        (line,) = [
            row for row in text.splitlines() if row.startswith(f"| {title} |") and " / " in row
        ]
        for shape, cell in zip(bench.SHAPES, line.strip("| ").split(" | ")[1:], strict=True):
            figures = bench.cost(op, shape)
            written = [float(number.replace(",", "")) * 1e6 for number in cell.split(" / ")]
            assert written == pytest.approx([figures.bytes, figures.eager_bytes], rel=0.06)


def test_the_share_is_of_the_nearer_ceiling(bench):
    ceilings = bench.Ceilings(bytes_per_s=100.0, flops_per_s=1000.0)
    assert bench.ceiling_share(bench.Cost(50, 0, 0), 1.0, ceilings) == 0.5
    assert bench.ceiling_share(bench.Cost(50, 900, 0), 1.0, ceilings) == 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_contest_is_over_the_same_op(bench, small, dtype):
    for op in bench.OPS:
        error, _ = bench.check(bench.contest(op, small, CPU, dtype))
        limit = bench.contest(op, small, CPU, dtype).tolerance
        assert error <= limit, (op, error)
        if dtype == torch.float32:
            assert error <= 2e-6, (op, error)


def test_a_wrong_op_is_not_timed(bench, small, monkeypatch):
    def never(call):
        raise AssertionError("a wrong op was timed")

    monkeypatch.setattr(bench, "median_us", never)
    right = bench.contest

    def wrong(op, shape, device, dtype):
        fight = right(op, shape, device, dtype)
        return dataclasses.replace(fight, ours=lambda: tuple(1.02 * out for out in fight.ours()))

    monkeypatch.setattr(bench, "contest", wrong)
    row = bench.measure("modulate", small, CPU, bench.Ceilings(1.0, 1.0), compiles=True)
    assert not row.right and row.ours_us is None
    assert "modulate on small 48 is wrong by" in bench.missed_targets([row])[0]


def test_nan_is_an_error_and_a_rival_that_does_something_else_too(bench, small):
    from _kernel_contests import largest_error

    nan = torch.full((1, 2), torch.nan)
    assert largest_error((nan,), (torch.ones(1, 2),)) == float("inf")
    fight = bench.contest("modulate", small, CPU, torch.bfloat16)
    other = dataclasses.replace(fight, eager=lambda x, scale, shift: (x,))
    with pytest.raises(ArithmeticError, match="computes another op"):
        bench.check(other)


def test_a_right_op_is_timed_and_a_slow_default_one_misses_its_target(bench, small, monkeypatch):
    times = iter([20.0, 10.0])
    monkeypatch.setattr(bench, "median_us", lambda call: next(times))
    row = bench.measure("modulate", small, CPU, bench.Ceilings(1e9, 1e12), compiles=False)
    assert (row.ours_us, row.eager_us, row.compiled_us) == (20.0, 10.0, None)
    assert row.ceiling_share == pytest.approx(row.bytes / 1e9 / 20e-6)
    assert bench.missed_targets([row]) == ["modulate on small 48 takes 2.00 times eager torch"]
    attention = dataclasses.replace(row, op="attention")
    assert bench.missed_targets([attention]) == []


def test_without_a_gpu_it_says_so(bench):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    command = [sys.executable, ROOT / "benchmarks" / "kernels.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == bench.NO_DEVICE == 69
    assert "there is no CUDA device here" in done.stderr
    assert done.stdout == ""
