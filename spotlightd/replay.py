"""Produces committed trajectories again and compares: a trajectory is a function of its request.

Reads a state directory that no daemon is writing to; needs torch.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch

from spotlightd.dit.lora import bind_adapter, read_adapter
from spotlightd.dit.models import DiffusionModel
from spotlightd.dit.sampler import Sampler, compatible
from spotlightd.dit.trajectory import Trajectory, decode_trajectory
from spotlightd.errors import InputError
from spotlightd.store.blobs import Blobs
from spotlightd.wire.sampling import Request

BATCH = 8


@dataclass(frozen=True)
class Replayed:
    request_id: str
    difference: float
    """Largest absolute difference of latents and log-probs; inf where it cannot be taken."""
    problem: str = ""
    """Why it could not be compared."""


def replay(
    model: DiffusionModel,
    weights: Path,
    blobs: Blobs,
    committed: Iterable[tuple[Request, str]],
    progress: Callable[[int], None] = lambda _: None,
) -> list[Replayed]:
    """Sample each request anew from its seed and compare with the stored trajectory.

    Args:
        model: with an adapter attached; its weights are replaced by each version's.
        weights: folder with `<version>/adapter.safetensors`.
        committed: requests with the digest of their trajectory.
        progress: told how many were compared since the last call.
    """
    by_version: dict[int, list[tuple[Request, str]]] = defaultdict(list)
    for request, digest in committed:
        by_version[request.policy_version].append((request, digest))
    sampler = Sampler(model)
    done: list[Replayed] = []
    for version, rows in sorted(by_version.items()):
        path = weights / str(version) / "adapter.safetensors"
        bind_adapter(model, read_adapter(path), str(path))
        for batch in _batches(rows):
            fresh = sample_whole(sampler, [request for request, _ in batch])
            done += [
                _compare(blobs, request, digest, trajectory)
                for (request, digest), trajectory in zip(batch, fresh, strict=True)
            ]
            progress(len(batch))
    return done


def sample_whole(sampler: Sampler, requests: Sequence[Request]) -> list[Trajectory]:
    """Run compatible requests from noise to their last step, in one batch."""
    trajectories = [sampler.start(request) for request in requests]
    while running := [t for t in trajectories if not t.done]:
        sampler.advance(running)
    return trajectories


def _batches(rows: list[tuple[Request, str]]) -> Iterable[list[tuple[Request, str]]]:
    """Split rows into batches whose members may share a forward pass."""
    first: list[Request] = []

    def kind(row: tuple[Request, str]) -> int:
        for number, request in enumerate(first):
            if compatible(request.sampler, row[0].sampler):
                return number
        first.append(row[0])
        return len(first) - 1

    for _, same in groupby(sorted(rows, key=kind), key=kind):
        alike = list(same)
        yield from (alike[start : start + BATCH] for start in range(0, len(alike), BATCH))


def _compare(blobs: Blobs, request: Request, digest: str, fresh: Trajectory) -> Replayed:
    shape = (fresh.latents_LD.shape[0], fresh.latents_LD.shape[1])
    try:
        stored = decode_trajectory(blobs.get(digest), request, shape)
    except InputError as error:
        return Replayed(request.request_id, float("inf"), str(error))
    if not stored.done or len(stored.window_log_probs) != len(fresh.window_log_probs):
        return Replayed(request.request_id, float("inf"), "the stored trajectory is not finished")
    pairs = [(stored.latents_LD, fresh.latents_LD.cpu())]
    pairs += zip(
        stored.window_next_latents, (t.cpu() for t in fresh.window_next_latents), strict=True
    )
    pairs.append((torch.tensor(stored.window_log_probs), torch.tensor(fresh.window_log_probs)))
    largest = max(float((a - b).abs().max()) if a.numel() else 0.0 for a, b in pairs)
    return Replayed(request.request_id, largest)
