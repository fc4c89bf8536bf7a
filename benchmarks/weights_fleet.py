"""Weights to a whole fleet in virtual time: the real decisions, a modelled network.

    python benchmarks/weights_fleet.py [--json FILE] [--check] [--vms 1000] [--parts base,adapter]

Every VM and the daemon send and receive 10 Gbit/s; all VMs start together, in four zones. What each
receiver, each server and the daemon decide is the project's own code; the network, the clock and
the daemon's announcements over CURVE are modelled (`spotlightd/simulate/swarm.py`). The
bound is the time in which a VM's own link carries the bytes: nobody can be faster.

    base     Qwen-Image, 41 GB
    adapter  its rank-64 adapter, 0.85 GB

Chunks have the size that the daemon would choose, times `--coarse`: 41 GB for 10,000 VMs are six
million chunks to decide on, and larger ones spread slower, so that such figures are pessimistic.

Targets (--check): time to all within 1.5 times the bound; the daemon sends at most 2 copies.
"""

import sys
import time

from _report import finish, make_parser

from spotlightd.simulate.swarm import Network, World
from spotlightd.simulate.transfers import LEAST_CHUNK, WINDOW, announced
from spotlightd.weights.fetch import MOST_IN_FLIGHT
from spotlightd.weights.manifest import chunk_size

SIZES = {"base": 41_000_000_000, "adapter": 850_000_000}


def spread(size: int, vms: int, coarse: int, seed: int) -> dict[str, float]:
    """Return the figures of one distribution of `size` bytes."""
    chunk_bytes = chunk_size(size, LEAST_CHUNK) * coarse
    chunks = -(-size // chunk_bytes)
    announced_bytes, manifest_bytes = announced(chunks)
    began = time.perf_counter()
    world = World(
        vms,
        chunks,
        chunk_bytes,
        announced_bytes,
        WINDOW,
        MOST_IN_FLIGHT,
        Network(),
        seed,
        manifest_bytes=manifest_bytes,
    )
    seconds = world.run()
    bound = chunks * chunk_bytes / world.network.rate
    return {
        "s": seconds,
        "bound_s": bound,
        "over_bound": seconds / bound,
        "daemon_copies": world.daemon.sent / (chunks * chunk_bytes),
        "daemon_gb": (world.daemon.sent + world.control_bytes) / 1e9,
        "far_share": world.far_chunks / (vms * chunks),
        "chunk_mb": chunk_bytes / 1e6,
        "announced_s": vms
        * (world.network.announce_s + announced_bytes / world.network.announce_rate),
        "took_s": time.perf_counter() - began,
    }


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--vms", default="1000")
    parser.add_argument("--parts", default="base,adapter")
    parser.add_argument("--coarse", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    figures: dict[str, float] = {}
    for vms in (int(text) for text in args.vms.split(",")):
        for part in args.parts.split(","):
            found = spread(SIZES[part], vms, args.coarse, args.seed)
            figures |= {f"{part}_{vms}_{name}": value for name, value in found.items()}
    return finish(
        "one version to a whole fleet, virtual time",
        figures,
        args,
        at_most={name: 1.5 for name in figures if name.endswith("_over_bound")}
        | {name: 2.0 for name in figures if name.endswith("_copies")},
    )


if __name__ == "__main__":
    sys.exit(main())
