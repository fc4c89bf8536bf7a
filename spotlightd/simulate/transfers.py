"""How long a version takes to reach VMs: the real swarm's decisions on a modelled network."""

from functools import lru_cache

from spotlightd.simulate.assumptions import Transfer
from spotlightd.simulate.swarm import Network, World
from spotlightd.weights.fetch import MOST_IN_FLIGHT
from spotlightd.weights.manifest import chunk_size

LEAST_CHUNK = 4 * 2**20
DIGEST_BYTES = 66
"""Of one chunk in a manifest: hex digits and two bytes of MessagePack."""
WINDOW = 4
MOST_HOSTS = 64
"""Of one played transfer; a larger fleet's times are drawn out of such a one, as the swarm's time
hardly grows with the fleet (docs/weights.md)."""


def arrival_s(given: Transfer, gigabytes: float, receivers: int, holders: int) -> tuple[float, ...]:
    """Return when each of `receivers` VMs has all of it, soonest first.

    Args:
        holders: other VMs that have it already.
    """
    played = min(receivers, MOST_HOSTS)
    times = _play(given.gbit_s, gigabytes, played, min(holders, MOST_HOSTS))
    return tuple(times[i * played // receivers] for i in range(receivers))


def last_arrival_s(given: Transfer, gigabytes: float, receivers: int, holders: int) -> float:
    """Return the last of `arrival_s`, at the same cost for any fleet."""
    played = min(receivers, MOST_HOSTS)
    return _play(given.gbit_s, gigabytes, played, min(holders, MOST_HOSTS))[-1]


def arrival_without_peers_s(given: Transfer, gigabytes: float, receivers: int) -> tuple[float, ...]:
    """The same where everybody asks the daemon, whose link they share evenly."""
    seconds = receivers * gigabytes * 8 / given.gbit_s
    return (seconds,) * receivers


@lru_cache(maxsize=512)
def _play(gbit_s: float, gigabytes: float, receivers: int, holders: int) -> tuple[float, ...]:
    total = int(gigabytes * 1e9)
    size = chunk_size(total, LEAST_CHUNK)
    chunks = -(-total // size)
    network = Network(rate=gbit_s * 1e9 / 8)
    world = World(
        receivers + holders,
        chunks,
        size,
        DIGEST_BYTES * chunks + 200,
        WINDOW,
        MOST_IN_FLIGHT,
        network,
        complete=holders,
    )
    world.run()
    return tuple(sorted(host.done_at or 0.0 for host in world.receivers))
