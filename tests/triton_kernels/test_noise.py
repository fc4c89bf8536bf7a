"""Noise in numpy (the truth), torch and Triton: integers equal, normals to 1e-6."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from triton_kernels import noise
from triton_kernels.noise import portable, reference

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
CASES = [
    # seed, step, stream, count, start
    (0, 0, 0, 1024, 0),
    (1, 3, 1, 4097, 0),
    (2**31, 7, 1, 63, 5),
    (2**32 + 9, 2, 0, 1, 1022),
    (2**63 - 1, 999, 1, 130, 2**34 + 3),
    (2**64 - 1, 2**32 - 1, 2**32 - 1, 10, 1),
]
"""Full and ragged blocks, unaligned starts, seeds of every width, counters beyond 32 bits."""

KNOWN = [
    ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]
"""Published Philox4x32-10 vectors: counter, key, output."""


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernel")
    (folder / "cases.json").write_text(json.dumps(CASES))
    script = ROOT / "tests" / "triton_kernels" / "interpret_noise.py"
    subprocess.run(
        [sys.executable, script, folder / "cases.json", folder / "out.npz"],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=60,
    )
    with np.load(folder / "out.npz") as arrays:
        return dict(arrays)


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN)
def test_the_reference_meets_the_published_vectors(counter, key, output):
    out = reference.philox4x32(np.array([counter], dtype=np.uint32), key)
    assert " ".join(f"{word:08x}" for word in out[0]) == output


def test_each_half_of_the_seed_and_each_counter_word_is_where_the_contract_says():
    seed, element, step, stream = 0x299F31D0_A4093822, 4 * 0x0000_0012_243F6A88, 7, 1
    bits = reference.random_bits(seed, step, stream, element, 4)
    counter = np.array([[0x243F6A88, 7, 1, 0x12]], dtype=np.uint32)
    assert bits.tolist() == reference.philox4x32(counter, (0xA4093822, 0x299F31D0))[0].tolist()


@pytest.mark.parametrize("case", CASES)
def test_torch_has_the_references_integers(case):
    seed, step, stream, count, start = case
    bits = portable.random_bits(seed, step, stream, start, count, CPU)
    assert bits.tolist() == reference.random_bits(seed, step, stream, start, count).tolist()


@pytest.mark.parametrize("case", CASES)
def test_torch_has_the_references_normals(case):
    ours = portable.standard_normal(*case, CPU)
    assert ours.dtype == torch.float32
    np.testing.assert_allclose(ours.numpy(), reference.standard_normal(*case), atol=1e-6, rtol=0)


@pytest.mark.parametrize("index", range(len(CASES)))
def test_the_kernel_has_the_references_integers(interpreted, index):
    seed, step, stream, count, start = CASES[index]
    expected = reference.random_bits(seed, step, stream, start, count)
    np.testing.assert_array_equal(interpreted[f"bits{index}"], expected)


@pytest.mark.parametrize("index", range(len(CASES)))
def test_the_kernel_has_the_references_normals(interpreted, index):
    expected = reference.standard_normal(*CASES[index])
    np.testing.assert_allclose(interpreted[f"normals{index}"], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("word", [0, 2**9 - 1, 2**31, 2**32 - 1])
def test_the_extreme_integers_give_finite_normals_in_every_version(monkeypatch, word):
    def words(seed, step, stream, start, count, device=None):
        bits = np.full(count, word, dtype=np.uint32)
        return bits if device is None else torch.from_numpy(bits.astype(np.int64))

    monkeypatch.setattr(reference, "random_bits", words)
    monkeypatch.setattr(portable, "random_bits", words)
    expected = reference.standard_normal(0, 0, 0, 2)
    assert np.isfinite(expected).all()
    ours = portable.standard_normal(0, 0, 0, 2, 0, CPU).numpy()
    np.testing.assert_allclose(ours, expected, atol=1e-6, rtol=0)


def test_uniforms_near_one_keep_their_small_radius():
    """A uniform that float32 rounds to 1 would give radius 0 where the truth is 3e-4."""
    ours = portable.standard_normal(5, 3, 1, 1_000_000, 0, CPU).numpy()
    expected = reference.standard_normal(5, 3, 1, 1_000_000)
    assert np.abs(ours - expected).max() < 1e-6


def test_cpu_tensors_come_from_the_reference():
    drawn = noise.standard_normal(3, 1, 1, 100, 7)
    np.testing.assert_array_equal(drawn.numpy(), reference.standard_normal(3, 1, 1, 100, 7))


def test_the_kernel_compiles_for_hopper_without_a_gpu():
    script = (
        "from triton.backends.compiler import GPUTarget\n"
        "from triton.compiler import ASTSource, compile\n"
        "from triton_kernels.noise.kernel import normal_kernel\n"
        "names = ('out_ptr', 'bits_ptr', 'seed', 'step_index', 'stream', 'first_block', 'blocks')\n"
        "types = ('*fp32', '*i32', 'u64', 'i32', 'i32', 'i64', 'i32')\n"
        "source = ASTSource(normal_kernel, {**dict(zip(names, types)), 'BLOCK': 'constexpr'},\n"
        "                   {'BLOCK': 1024})\n"
        "print(len(compile(source, target=GPUTarget('cuda', 90, 32)).asm['ptx']))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1000


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_a_cuda_device_has_the_references_numbers(case):
    from triton_kernels.noise.kernel import launch_with_bits

    seed, step, stream, count, start = case
    normals, bits = launch_with_bits(*case, torch.device("cuda"))
    expected = reference.random_bits(seed, step, stream, start, count)
    np.testing.assert_array_equal(bits.cpu().numpy().view(np.uint32), expected)
    truth = reference.standard_normal(*case)
    np.testing.assert_allclose(normals.cpu().numpy(), truth, atol=1e-6, rtol=0)
