"""The Triton version of reference.py: Philox-4x32-10 and Box-Muller in fp32.

Integers equal the reference bit for bit. Normals agree to 1e-6: the logarithm is the device's own.
"""

import torch
import triton
import triton.language as tl

from triton_kernels.variants import Variant

BLOCK = 1024
"""Counter blocks (of four elements) per program."""
OPTIONS = {"num_warps": 8, "enable_fp_fusion": False}


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
    # There Taylor's series to degree 10 are exact to fp32, and need none of the reduction of
    # large arguments that a library's sine and cosine carry along.
    s = rest * rest
    sine = 1.0 - s / 6.0 * (1.0 - s / 20.0 * (1.0 - s / 42.0 * (1.0 - s / 72.0)))
    sine = rest * sine
    cosine = 1.0 - s / 30.0 * (1.0 - s / 56.0 * (1.0 - s / 90.0))
    cosine = 1.0 - s / 2.0 * (1.0 - s / 12.0 * cosine)
    quadrant = nearest.to(tl.int32) & 3
    odd = (quadrant & 1) == 1
    x = tl.where(odd, sine, cosine)
    y = tl.where(odd, cosine, sine)
    x = tl.where((quadrant == 1) | (quadrant == 2), -x, x)
    y = tl.where(quadrant >= 2, -y, y)
    return radius * x, radius * y


@triton.jit
def random_words(seed, step_index, stream, block):
    """Return the four integers of each counter block (int64, element // 4)."""
    zero = block.to(tl.uint32) * 0
    c1 = zero + step_index.to(tl.uint32)
    c2 = zero + stream.to(tl.uint32)
    return tl.philox(seed, block.to(tl.uint32), c1, c2, (block >> 32).to(tl.uint32))


@triton.jit
def normals_of(r0, r1, r2, r3):
    """Return the four normals of each counter block, given its integers."""
    x0, y0 = _box_muller(r0, r1)
    x1, y1 = _box_muller(r2, r3)
    return x0, y0, x1, y1


# Seeds and positions change with every call: specialising on their value, or on the width that it
# happens to need, would compile anew.
@triton.jit(do_not_specialize=["seed", "step_index", "stream", "first_block", "blocks"])
def normal_kernel(
    out_ptr,
    bits_ptr,
    seed: tl.uint64,
    step_index: tl.uint32,
    stream: tl.uint32,
    first_block: tl.int64,
    blocks: tl.int32,
    BLOCK: tl.constexpr,
    WITH_BITS: tl.constexpr,
):
    """Write 4 normals per counter block, and on request their integers."""
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < blocks
    block = lane.to(tl.int64) + first_block
    r0, r1, r2, r3 = random_words(seed, step_index, stream, block)
    if WITH_BITS:
        tl.store(bits_ptr + lane * 4 + 0, r0, mask=inside)
        tl.store(bits_ptr + lane * 4 + 1, r1, mask=inside)
        tl.store(bits_ptr + lane * 4 + 2, r2, mask=inside)
        tl.store(bits_ptr + lane * 4 + 3, r3, mask=inside)
    x0, y0, x1, y1 = normals_of(r0, r1, r2, r3)
    tl.store(out_ptr + lane * 4 + 0, x0, mask=inside)
    tl.store(out_ptr + lane * 4 + 1, y0, mask=inside)
    tl.store(out_ptr + lane * 4 + 2, x1, mask=inside)
    tl.store(out_ptr + lane * 4 + 3, y1, mask=inside)


def _launch(
    seed: int,
    step_index: int,
    stream: int,
    count: int,
    start: int,
    device: torch.device,
    with_bits: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    first_block = start // 4
    blocks = (start + count + 3) // 4 - first_block
    normals = torch.empty(4 * blocks, dtype=torch.float32, device=device)
    bits = torch.empty(4 * blocks if with_bits else 0, dtype=torch.int32, device=device)
    grid = (triton.cdiv(max(blocks, 1), BLOCK),)
    normal_kernel[grid](
        normals, bits, seed, step_index, stream, first_block, blocks,
        BLOCK=BLOCK, WITH_BITS=with_bits, **OPTIONS,
    )  # fmt: skip
    cut = slice(start - 4 * first_block, start - 4 * first_block + count)
    return normals[cut], bits[cut]


def launch_with_bits(
    seed: int, step_index: int, stream: int, count: int, start: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (normals float32 [count], integers int32 [count])."""
    return _launch(seed, step_index, stream, count, start, device, with_bits=True)


def launch(
    seed: int, step_index: int, stream: int, count: int, start: int, device: torch.device
) -> torch.Tensor:
    """Return float32 [count] normals on `device`."""
    return _launch(seed, step_index, stream, count, start, device, with_bits=False)[0]


VARIANTS = [
    Variant(
        name=f"noise {'with integers' if with_bits else ''}".strip(),
        kernel=normal_kernel,
        types={
            "out_ptr": "*fp32", "bits_ptr": "*i32", "seed": "u64", "step_index": "u32",
            "stream": "u32", "first_block": "i64", "blocks": "i32",
        },
        constants={"BLOCK": BLOCK, "WITH_BITS": with_bits},
        options=OPTIONS,
    )
    for with_bits in (False, True)
]  # fmt: skip
