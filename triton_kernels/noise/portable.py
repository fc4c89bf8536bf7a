"""The torch version of reference.py, for devices that have neither numpy nor Triton (mps, xpu).

Integers equal the reference bit for bit: a 32 x 32 bit product wraps in int64, and its halves are
cut out by masks. Normals agree to 1e-6.
"""

import math

import torch
from torch import Tensor

from triton_kernels.noise.reference import MULTIPLIERS, ROUNDS, WEYL

MASK = 0xFFFFFFFF


def random_bits(
    seed: int, step_index: int, stream: int, start: int, count: int, device: torch.device
) -> Tensor:
    """Return int64 [count] holding the 32-bit integers; arguments as in the reference."""
    first_block, last_block = start // 4, (start + count + 3) // 4
    blocks = torch.arange(first_block, last_block, dtype=torch.int64, device=device)
    words = [
        blocks & MASK,
        torch.full_like(blocks, step_index),
        torch.full_like(blocks, stream),
        blocks >> 32,
    ]
    key_0, key_1 = seed & MASK, seed >> 32
    for _ in range(ROUNDS):
        product_0, product_1 = words[0] * MULTIPLIERS[0], words[2] * MULTIPLIERS[1]
        words = [
            (product_1 >> 32) & MASK ^ words[1] ^ key_0,
            product_1 & MASK,
            (product_0 >> 32) & MASK ^ words[3] ^ key_1,
            product_0 & MASK,
        ]
        key_0, key_1 = (key_0 + WEYL[0]) & MASK, (key_1 + WEYL[1]) & MASK
    offset = start - 4 * first_block
    return torch.stack(words, dim=1).reshape(-1)[offset : offset + count]


def standard_normal(
    seed: int, step_index: int, stream: int, count: int, start: int, device: torch.device
) -> Tensor:
    """Return float32 [count] normals on `device`."""
    first = start - start % 2
    stop = start + count + (start + count) % 2
    bits = random_bits(seed, step_index, stream, first, stop - first, device)
    uniform = ((bits >> 9).to(torch.float32) + 0.5) * 2.0**-23
    radius = torch.sqrt(-2.0 * torch.log(uniform[0::2]))
    quarters = 4.0 * uniform[1::2]
    nearest = torch.round(quarters)
    # The rest of the angle, within an eighth turn, is exact before the one rounded product.
    rest = (quarters - nearest) * (math.pi / 2)
    cosine, sine = torch.cos(rest), torch.sin(rest)
    odd, quadrant = nearest % 2 == 1, nearest % 4
    x = torch.where(odd, sine, cosine)
    y = torch.where(odd, cosine, sine)
    x = torch.where((quadrant == 1) | (quadrant == 2), -x, x)
    y = torch.where(quadrant >= 2, -y, y)
    normals = torch.stack([radius * x, radius * y], dim=1).reshape(-1)
    return normals[start - first : start - first + count]
