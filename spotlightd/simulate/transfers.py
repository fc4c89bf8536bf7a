"""How long a version takes to reach VMs: the real swarm's decisions on a modelled network."""

from functools import lru_cache

import msgspec

from spotlightd.simulate.assumptions import Transfer
from spotlightd.simulate.swarm import Network, World
from spotlightd.weights.fetch import MOST_IN_FLIGHT
from spotlightd.weights.holders import FAR_PEERS, NEAR_PEERS
from spotlightd.weights.manifest import LONG_MANIFEST, chunk_size, encode_manifest
from spotlightd.wire.weights import (
    AnnouncedVersion,
    Manifest,
    PublishedVersion,
    WeightFile,
    WeightPeer,
)

LEAST_CHUNK = 4 * 2**20
WINDOW = 4
MOST_HOSTS = 64
"""Of one played transfer; a larger fleet's times are drawn out of such a one, as the swarm's time
hardly grows with the fleet (docs/weights.md)."""


def announced(chunks: int) -> tuple[int, int]:
    """Return the bytes of an announcement as it is encoded, and of the manifest where that is
    fetched apart from it, else 0.
    """
    peer = WeightPeer("agent-1234", "tcp://10.128.12.34:40123", near=True)
    peers, digest = (peer,) * (NEAR_PEERS + FAR_PEERS), "0" * 64
    file = WeightFile("adapter_model.safetensors", chunks * LEAST_CHUNK, (digest,) * chunks)
    manifest = Manifest("adapter", 12, LEAST_CHUNK, (file,), 11, digest)
    size = len(encode_manifest(manifest))
    if size <= LONG_MANIFEST:
        return len(msgspec.msgpack.encode(PublishedVersion(manifest, True, peers))), 0
    message = AnnouncedVersion("adapter", 12, digest, size, True, peers)
    return len(msgspec.msgpack.encode(message)), size


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
    announced_bytes, manifest_bytes = announced(chunks)
    world = World(
        receivers + holders,
        chunks,
        size,
        announced_bytes,
        WINDOW,
        MOST_IN_FLIGHT,
        network,
        complete=holders,
        manifest_bytes=manifest_bytes,
    )
    world.run()
    return tuple(sorted(host.done_at or 0.0 for host in world.receivers))
