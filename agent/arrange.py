"""Which workers make up the groups of a plan. Pure."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Arrangement(NamedTuple):
    indexes: tuple[int, ...]
    """Workers in rank order."""
    requests: tuple[str, ...]


def arrange(
    wanted: Sequence[tuple[int, tuple[str, ...]]],
    workers: Sequence[int],
    holders: Mapping[str, int],
) -> list[Arrangement]:
    """Give each (degree, requests) its workers, the widest group first.

    Blocks whose first index is a multiple of their size come before others, so that few different
    groups ever exist and most are found in the cache; of those, the one whose workers hold the
    requests already.
    """
    free = sorted(workers)
    made = []
    for degree, requests in sorted(wanted, key=lambda group: -group[0]):
        held = [holders[r] for r in requests if r in holders]
        starts = range(len(free) - degree + 1)
        blocks = [tuple(free[start : start + degree]) for start in starts]

        def rank(block: tuple[int, ...], held: Sequence[int] = held) -> tuple[bool, int, int]:
            whole = block[-1] - block[0] == len(block) - 1
            aligned = whole and block[0] % len(block) == 0
            return not aligned, -sum(index in block for index in held), block[0]

        chosen = min(blocks, key=rank)
        free = [index for index in free if index not in chosen]
        made.append(Arrangement(chosen, requests))
    return made
