"""Seeds, windows and prompt order: everything random in a plan, derived from the run's seed.

Nothing here depends on rank, host or time, so any process can derive the same plan again
(DESIGN: contracts, "Seed").
"""

import hashlib
from collections.abc import Sequence


def keyed_hash(*parts: int | str) -> int:
    """Return a 64-bit hash of the parts; equal parts give equal hashes on every machine."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def derive_seed(run_seed: int, iteration: int, prompt_id: str, index: int) -> int:
    """Return the `index`-th candidate seed of a prompt in an iteration, in [0, 2**63)."""
    return keyed_hash("seed", run_seed, iteration, prompt_id, index) >> 1


def evaluation_seed(run_seed: int, prompt_id: str, index: int) -> int:
    """Return a seed that stays the same in every evaluation of the run."""
    return keyed_hash("evaluate", run_seed, prompt_id, index) >> 1


def draw_window(
    run_seed: int, iteration: int, prompt_id: str, starts: Sequence[int], size: int
) -> tuple[int, ...]:
    """Return the stochastic steps that a rollout group shares (NUMERICS: denoising step)."""
    start = starts[keyed_hash("window", run_seed, iteration, prompt_id) % len(starts)]
    return tuple(range(start, start + size))


def shorten_tail(sigmas: Sequence[float], window: Sequence[int], tail: int) -> tuple[float, ...]:
    """Return the sigma array of an exploration with `tail` steps after the SDE window.

    Steps up to the window's last stay as they are, so that the same seed meets the same noise
    at the same sigmas; of the ODE steps after it, evenly spaced ones are left out.
    """
    end = window[-1] + 1
    rest = len(sigmas) - 1 - end
    tail = min(tail, rest)
    kept = [sigmas[end + round(step * rest / tail)] for step in range(1, tail + 1)]
    return (*sigmas[: end + 1], *kept)


def draw_prompts(run_seed: int, iteration: int, prompt_ids: Sequence[str], count: int) -> list[str]:
    """Return the prompts of an iteration: every epoch goes once through all, in its own order.

    The order within an epoch is by keyed hash. Where the list is shorter than `count`, prompts
    come again only in the next epoch's turn, and never twice in one iteration.
    """
    count = min(count, len(prompt_ids))
    first = iteration * count
    chosen: list[str] = []
    epoch = first // len(prompt_ids)
    position = first % len(prompt_ids)
    while len(chosen) < count:
        order = sorted(prompt_ids, key=lambda p: keyed_hash("epoch", run_seed, epoch, p))
        chosen += [p for p in order[position:] if p not in chosen][: count - len(chosen)]
        epoch, position = epoch + 1, 0
    return chosen
