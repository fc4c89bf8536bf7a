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
    # 23 bits and a half are exact in fp32; 24 would round, and up to 1 at that.
    return ((bits >> 9).to(tl.float32) + 0.5) * (1.0 / 8388608.0)


@triton.jit
def _box_muller(radius_bits, angle_bits):
    radius = tl.sqrt_rn(-2.0 * tl.log(_uniform(radius_bits)))
    quarters = 4.0 * _uniform(angle_bits)
    nearest = tl.floor(quarters + 0.5)
    # The rest of the angle, within an eighth turn, is exact before the one rounded product.
    rest = (quarters - nearest) * 1.5707963267948966
    cosine, sine = tl.cos(rest), tl.sin(rest)
    quadrant = nearest.to(tl.int32) & 3
    odd = (quadrant & 1) == 1
    x = tl.where(odd, sine, cosine)
    y = tl.where(odd, cosine, sine)
    x = tl.where((quadrant == 1) | (quadrant == 2), -x, x)
    y = tl.where(quadrant >= 2, -y, y)
    return radius * x, radius * y


# Seeds and positions change with every call: specialising on them would compile anew each time.
@triton.jit(do_not_specialize=["seed", "step_index", "stream", "first_block", "blocks"])
def normal_kernel(
    out_ptr, bits_ptr, seed, step_index, stream, first_block, blocks, BLOCK: tl.constexpr
):
    """Write 4 normals and their integers per counter block."""
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < blocks
    block = lane.to(tl.int64) + first_block
    zero = tl.zeros([BLOCK], dtype=tl.uint32)
    c0 = block.to(tl.uint32)
    c1 = zero + step_index.to(tl.uint32)
    c2 = zero + stream.to(tl.uint32)
    c3 = (block >> 32).to(tl.uint32)
    r0, r1, r2, r3 = tl.philox(seed, c0, c1, c2, c3)
    tl.store(bits_ptr + lane * 4 + 0, r0, mask=inside)
    tl.store(bits_ptr + lane * 4 + 1, r1, mask=inside)
    tl.store(bits_ptr + lane * 4 + 2, r2, mask=inside)
    tl.store(bits_ptr + lane * 4 + 3, r3, mask=inside)
    x0, y0 = _box_muller(r0, r1)
    x1, y1 = _box_muller(r2, r3)
    tl.store(out_ptr + lane * 4 + 0, x0, mask=inside)
    tl.store(out_ptr + lane * 4 + 1, y0, mask=inside)
    tl.store(out_ptr + lane * 4 + 2, x1, mask=inside)
    tl.store(out_ptr + lane * 4 + 3, y1, mask=inside)


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
