"""How well sequence parallelism scales, what it moves, and diffusers' own Ulysses beside it.

    python -m torch.distributed.run --standalone --nproc-per-node 8 benchmarks/sp.py     # NCCL
    python benchmarks/sp.py [--ranks 2] [--json FILE] [--check]                          # gloo

Without torch.distributed.run it starts itself so, with --ranks processes. A random Qwen-Image of
the stated size computes velocities at every degree from 1 to the number of ranks; before any time
is reported, each is compared with degree 1. Rounds alternate between the contestants, and ratios
are medians over rounds.

- speedup and efficiency by degree: time alone over time together, and that per rank;
- bytes a rank sends in one forward, by the model in `spotlightd/dit/joint_attention.py`;
- ours over diffusers: `enable_parallelism` with Ulysses on all ranks, where it can run: tokens and
  heads that the degree divides, and no change of degree.

Target (--check): ours takes at most 1.05 times as long as diffusers' own.
"""

import argparse
import copy
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from _report import finish, make_parser

SIZES = {
    "small": {"num_layers": 4, "heads": 8, "size": 32, "image": (16, 16), "text": 32},
    "qwen-image": {"num_layers": 60, "heads": 24, "size": 128, "image": (64, 64), "text": 256},
}
TOLERANCE = {"cpu": 1e-5, "cuda": 0.05}
MOST_OVER_DIFFUSERS = 1.05


def make_transformer(size: dict[str, Any], device: torch.device) -> Any:
    from diffusers import QwenImageTransformer2DModel

    torch.manual_seed(0)
    head = size["size"]
    axes = (head // 8, head // 16 * 7, head // 16 * 7)
    with torch.device(device):
        model = QwenImageTransformer2DModel(
            in_channels=64, out_channels=16, num_layers=size["num_layers"],
            attention_head_dim=head, num_attention_heads=size["heads"],
            joint_attention_dim=head, axes_dims_rope=axes,
        )  # fmt: skip
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return model.to(device, dtype).eval().requires_grad_(False)


def make_inputs(size: dict[str, Any], device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    rows, columns = size["image"]
    latents = torch.randn(1, rows * columns, 64, generator=generator)
    text = torch.randn(1, size["text"], size["size"], generator=generator)
    return {
        "hidden_states": latents.to(device, dtype),
        "encoder_hidden_states": text.to(device, dtype),
        "encoder_hidden_states_mask": None,
        "timestep": torch.tensor([0.7], device=device, dtype=dtype),
        "img_shapes": [[(1, rows, columns)]],
        "return_dict": False,
    }


def bytes_sent(size: dict[str, Any], degree: int, element: int) -> float:
    """Bytes that rank 0 sends in one forward: attention of every layer, and the last gather."""
    rows, columns = size["image"]
    tokens, text, channels = rows * columns, size["text"], size["heads"] * size["size"]
    share = (degree - 1) / degree
    if size["heads"] % degree == 0:
        # Queries, keys and values; then the output, with which each rank's text heads travel.
        layer = (4 * tokens / degree * channels + text * channels) * share
    else:
        layer = 2 * -(-tokens // degree) * channels * (degree - 1)
    last = -(-tokens // degree) * 64 * (degree - 1)
    return float(element * (size["num_layers"] * layer + last))


class Contest:
    """Times forwards of contestants in turn, on all ranks together."""

    def __init__(self, device: torch.device, rounds: int) -> None:
        self._device, self._rounds = device, rounds

    def run(self, contestants: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
        times: dict[str, list[float]] = {name: [] for name in contestants}
        for number in range(self._rounds + 2):
            for name, forward in contestants.items():
                dist.barrier()
                began = time.perf_counter()
                forward()
                if self._device.type == "cuda":
                    torch.cuda.synchronize(self._device)
                if number >= 2:
                    times[name].append(time.perf_counter() - began)
        return times


def diffusers_ulysses(transformer: Any, degree: int) -> Any:
    """Return a copy that diffusers has parallelised over all ranks."""
    from diffusers import ContextParallelConfig

    if not torch.cuda.is_available():
        # diffusers divides the rank by this, and a CPU build of torch counts none.
        torch.accelerator.device_count = lambda: 1
    theirs = copy.deepcopy(transformer)
    theirs.enable_parallelism(config=ContextParallelConfig(ulysses_degree=degree))
    return theirs


@torch.no_grad()
def measure(args: argparse.Namespace, device: torch.device) -> dict[str, float]:
    from spotlightd.dit.models.qwen_ops import use_fused_ops
    from spotlightd.dit.sequence_parallel import SequenceParallel
    from spotlightd.dit.sp_group import GroupMaker, Place, make_store

    rank, ranks = dist.get_rank(), dist.get_world_size()
    size = SIZES[args.size]
    plain = make_transformer(size, device)
    inputs = make_inputs(size, device, plain.dtype)
    ours = copy.deepcopy(plain)
    use_fused_ops(ours)
    parallel = SequenceParallel(ours)
    store = make_store() if rank == 0 else None
    port = [store.port if store is not None else 0]
    dist.broadcast_object_list(port)
    maker = GroupMaker(port[0], device, timeout_s=60.0)
    groups = {
        degree: maker.enter(Place(f"first {degree}", rank, degree))
        for degree in range(2, ranks + 1)
        if rank < degree
    }

    def together(degree: int) -> Any:
        if rank >= degree:
            return None
        parallel.group = groups.get(degree)
        return ours(**inputs)[0]

    alone = together(1) if rank == 0 else None
    worst = 0.0
    for degree in range(1, ranks + 1):
        found = together(degree)
        if rank == 0:
            worst = max(worst, float((found - alone).abs().max()))
    if rank == 0 and worst > TOLERANCE[device.type]:
        raise SystemExit(f"sp: degrees differ by {worst:g}: no time is reported for wrong work")
    contest = Contest(device, args.rounds)
    degrees = range(1, ranks + 1)
    times = contest.run({str(d): lambda d=d: together(d) for d in degrees})
    figures = {"ranks": float(ranks), "largest_difference": worst}
    for degree in degrees:
        ratios = [a / b for a, b in zip(times["1"], times[str(degree)], strict=True)]
        speedup = statistics.median(ratios)
        figures[f"degree_{degree}_ms"] = 1000 * statistics.median(times[str(degree)])
        figures[f"degree_{degree}_speedup"] = speedup
        figures[f"degree_{degree}_efficiency"] = speedup / degree
        sent = bytes_sent(size, degree, plain.dtype.itemsize)
        figures[f"degree_{degree}_sent_mb"] = sent / 1e6
    rows, columns = size["image"]
    divides = not any(n % ranks for n in (rows * columns, size["text"], size["heads"]))
    if ranks > 1 and divides:
        theirs = diffusers_ulysses(plain, ranks)
        times = contest.run({"ours": lambda: together(ranks), "theirs": lambda: theirs(**inputs)})
        ratios = [a / b for a, b in zip(times["ours"], times["theirs"], strict=True)]
        figures["diffusers_ulysses_ms"] = 1000 * statistics.median(times["theirs"])
        figures["ours_over_diffusers"] = statistics.median(ratios)
        figures["ours_over_diffusers_min"] = min(ratios)
        figures["ours_over_diffusers_max"] = max(ratios)
    dist.barrier()
    maker.close()
    return figures


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="processes to start, by itself")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--size", choices=sorted(SIZES), default="")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        command = ["torch.distributed.run", "--standalone", f"--nproc-per-node={args.ranks}"]
        return subprocess.call([sys.executable, "-m", *command, *sys.argv])
    cuda = torch.cuda.is_available()
    args.size = args.size or ("qwen-image" if cuda else "small")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        figures = measure(args, device)
        if dist.get_rank() != 0:
            return 0
        at_most = {"ours_over_diffusers": MOST_OVER_DIFFUSERS}
        at_most = {name: limit for name, limit in at_most.items() if name in figures}
        return finish(f"{args.size}, {device.type}, 1 image", figures, args, at_most=at_most)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
