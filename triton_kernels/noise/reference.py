"""Counter-based normal noise in numpy: slow, obvious, and the truth for the other versions.

Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). The key is
the seed's two 32-bit halves. Four consecutive elements of the full latent share one counter
block: counter = (element // 4, denoise step, stream, 0), and each block's four integers make two
Box-Muller pairs. Whoever computes any slice of the latent therefore gets the same numbers.
"""

import numpy as np

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def philox4x32(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Return Philox-4x32-10 of each counter.

    Args:
        counter: uint32 [N, 4].
        key: two 32-bit words.

    Returns:
        uint32 [N, 4].
    """
    words = [counter[:, i].astype(np.uint64) for i in range(4)]
    key_0, key_1 = key
    mask = np.uint64(0xFFFFFFFF)
    for _ in range(ROUNDS):
        product_0 = words[0] * np.uint64(MULTIPLIERS[0])
        product_1 = words[2] * np.uint64(MULTIPLIERS[1])
        words = [
            (product_1 >> np.uint64(32)) ^ words[1] ^ np.uint64(key_0),
            product_1 & mask,
            (product_0 >> np.uint64(32)) ^ words[3] ^ np.uint64(key_1),
            product_0 & mask,
        ]
        key_0 = (key_0 + WEYL[0]) & 0xFFFFFFFF
        key_1 = (key_1 + WEYL[1]) & 0xFFFFFFFF
    return np.stack(words, axis=1).astype(np.uint32)


def random_bits(seed: int, step_index: int, stream: int, start: int, count: int) -> np.ndarray:
    """Return the 32-bit integers behind elements `start` .. `start + count` of the latent.

    Args:
        seed: 0 <= seed < 2**64.
        step_index: denoising step, below 2**32.
        stream: 0 initial latent, 1 SDE noise.
        start, count: element range in row-major order over the full latent.

    Returns:
        uint32 [count].
    """
    first_block, last_block = start // 4, (start + count + 3) // 4
    blocks = np.arange(first_block, last_block, dtype=np.uint64)
    counter = np.empty((len(blocks), 4), dtype=np.uint32)
    counter[:, 0] = blocks.astype(np.uint32)
    counter[:, 1] = step_index
    counter[:, 2] = stream
    counter[:, 3] = (blocks >> np.uint64(32)).astype(np.uint32)
    bits = philox4x32(counter, (seed & 0xFFFFFFFF, seed >> 32)).reshape(-1)
    offset = start - 4 * first_block
    return bits[offset : offset + count]


def standard_normal(
    seed: int, step_index: int, stream: int, count: int, start: int = 0
) -> np.ndarray:
    """Return float32 [count] standard normals by Box-Muller; arguments as `random_bits`.

    Uniforms are `(bits >> 9 + 0.5) / 2**23`: exact in float32 and never 0 or 1, so that the
    logarithm is finite and the float32 versions start from the very same numbers. The
    transcendental functions are taken in float64 and rounded once, which makes the result the
    same on every machine with a correctly rounded library.
    """
    first = start - start % 2
    stop = start + count + (start + count) % 2
    bits = random_bits(seed, step_index, stream, first, stop - first)
    uniform = ((bits >> np.uint32(9)).astype(np.float64) + 0.5) * 2.0**-23
    radius = np.sqrt(-2.0 * np.log(uniform[0::2]))
    angle = 2.0 * np.pi * uniform[1::2]
    normals = np.empty(stop - first, dtype=np.float32)
    normals[0::2] = radius * np.cos(angle)
    normals[1::2] = radius * np.sin(angle)
    return normals[start - first : start - first + count]
