"""The Triton version of reference.py: Philox-4x32-10 and Box-Muller in fp32.

Integers equal the reference bit for bit. Normals agree to 1e-6: logarithm, sine and cosine are
rounded differently by each device.
"""

import torch
import triton
import triton.language as tl

BLOCK = 1024
"""Counter blocks (of four elements) per program."""


@triton.jit
def _uniform(bits):
    return ((bits >> 8).to(tl.float32) + 0.5) * (1.0 / 16777216.0)


@triton.jit
def normal_kernel(
    out_ptr, bits_ptr, seed, step_index, stream, first_block, blocks, BLOCK: tl.constexpr
):
    """Write 4 normals (and, for tests, their integers) per counter block."""
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < blocks
    block = first_block + lane
    zero = block * 0
    c0 = block.to(tl.uint32)
    c1 = (zero + step_index).to(tl.uint32)
    c2 = (zero + stream).to(tl.uint32)
    c3 = (block >> 32).to(tl.uint32)
    r0, r1, r2, r3 = tl.philox(seed, c0, c1, c2, c3)
    tl.store(bits_ptr + lane * 4 + 0, r0, mask=inside)
    tl.store(bits_ptr + lane * 4 + 1, r1, mask=inside)
    tl.store(bits_ptr + lane * 4 + 2, r2, mask=inside)
    tl.store(bits_ptr + lane * 4 + 3, r3, mask=inside)
    radius_a = tl.sqrt(-2.0 * tl.log(_uniform(r0)))
    radius_b = tl.sqrt(-2.0 * tl.log(_uniform(r2)))
    angle_a = 6.283185307179586 * _uniform(r1)
    angle_b = 6.283185307179586 * _uniform(r3)
    tl.store(out_ptr + lane * 4 + 0, radius_a * tl.cos(angle_a), mask=inside)
    tl.store(out_ptr + lane * 4 + 1, radius_a * tl.sin(angle_a), mask=inside)
    tl.store(out_ptr + lane * 4 + 2, radius_b * tl.cos(angle_b), mask=inside)
    tl.store(out_ptr + lane * 4 + 3, radius_b * tl.sin(angle_b), mask=inside)


def launch_with_bits(
    seed: int, step_index: int, stream: int, count: int, start: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (normals float32 [count], integers int32 [count])."""
    first_block = start // 4
    blocks = (start + count + 3) // 4 - first_block
    normals = torch.empty(4 * blocks, dtype=torch.float32, device=device)
    bits = torch.empty(4 * blocks, dtype=torch.int32, device=device)
    grid = (triton.cdiv(max(blocks, 1), BLOCK),)
    normal_kernel[grid](normals, bits, seed, step_index, stream, first_block, blocks, BLOCK=BLOCK)
    cut = slice(start - 4 * first_block, start - 4 * first_block + count)
    return normals[cut], bits[cut]


def launch(
    seed: int, step_index: int, stream: int, count: int, start: int, device: torch.device
) -> torch.Tensor:
    """Return float32 [count] normals on `device`."""
    return launch_with_bits(seed, step_index, stream, count, start, device)[0]
