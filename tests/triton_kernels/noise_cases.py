"""Draws that the noise of numpy, torch and the kernel is compared on."""

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
