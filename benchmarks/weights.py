"""Weights from peer to peer on loopback: time to the last receiver, and what the daemon sends.

    python benchmarks/weights.py [--json FILE] [--check] [--megabytes 512] [--receivers 1,2,4,8,16]

Every receiver is a process with a chunk server; the parent serves as the daemon. In the same run:
every receiver downloads the file from one aiohttp server (what a user would write first), and one
process copies the file over plain ZeroMQ in chunks of the same size, hashing nothing.

On one machine all hosts share its cores, so that sixteen receivers' copying and hashing takes
sixteen times as long however it is arranged. Therefore there are two parts: `free`, where nothing
limits but the CPU, and `linked`, where each host sends at most `--link` MB/s, as with a network
card of its own, with a smaller model (`--linked-megabytes`).

Targets (--check): the daemon sends at most 2 copies at 16 receivers, in both parts. Linked, the
time at 16 is at most 2.5 times that at 1. Alone, a receiver gets at least 0.7 of the raw copy's
throughput, hashing included.
"""

import argparse
import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import zmq.asyncio
from _report import finish, make_parser
from _swarm_hosts import (
    SPAWN,
    Order,
    Outcome,
    http_client,
    http_server,
    raw_client,
    raw_server,
    receiver,
)

from spotlightd.fleet.membership import Member
from spotlightd.fleet.weights_desk import WeightsDesk
from spotlightd.weights.chunks import ChunkStore
from spotlightd.weights.serve import AGAIN_S
from spotlightd.weights.server import ChunkServer

CHUNK_BYTES = 4 * 2**20
MB = 1e6


class Child:
    """A spawned process with a pipe, and the folder that it fills."""

    def __init__(self, target: Callable[..., None], *args: Any) -> None:
        self.pipe, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=target, args=(theirs, *args), daemon=True)
        self.process.start()
        theirs.close()

    async def receive(self) -> Any:
        return await asyncio.to_thread(self.pipe.recv)

    async def receive_bytes(self) -> bytes:
        return await asyncio.to_thread(self.pipe.recv_bytes)

    async def end(self) -> None:
        self.pipe.close()
        await asyncio.to_thread(self.process.join, 10)
        if self.process.is_alive():
            self.process.kill()


async def swarm(root: Path, folder: Path, count: int, uplink: float) -> dict[str, float]:
    """Fetch the model in `count` fresh receivers at once."""
    context, store = zmq.asyncio.Context(), ChunkStore()
    server = ChunkServer(context, store, "127.0.0.1", 0, again_s=AGAIN_S)
    server.serving.uplink = uplink
    endpoint = f"tcp://127.0.0.1:{server.port}"
    desk = WeightsDesk(store, server, endpoint, CHUNK_BYTES, rng=Random(1))
    desk.publish_base(root)
    children = [Child(receiver, str(folder / f"r{i}"), uplink) for i in range(count)]
    for number, child in enumerate(children):
        member = Member(f"r{number}", "vm", "agent", 1, 0.0, 0.0)
        member.chunk_endpoint = f"tcp://127.0.0.1:{await child.receive()}"
        desk.joined(member, "")
    tickets = desk.tickets().tickets
    agents = [f"r{number}" for number in range(count)]
    desk.holders.choose_seeds(("base", 0), agents)
    for agent in agents:
        desk.holders.has(("base", 0), agent, 0, complete=False)
    server.start()
    began = time.monotonic()
    for agent, child in zip(agents, children, strict=True):
        (_, published) = desk.greeting(agent)
        order = Order(published.manifest, published.peers, tickets[0])
        child.pipe.send_bytes(msgspec.msgpack.encode(order))
    reports = await asyncio.gather(*(child.receive_bytes() for child in children))
    outcomes = [msgspec.msgpack.decode(report, type=Outcome) for report in reports]
    for child in children:
        child.pipe.send_bytes(b"end")
    served = [msgspec.msgpack.decode(await child.receive_bytes()) for child in children]
    await asyncio.gather(*(child.end() for child in children))
    size = (root / "model.bin").stat().st_size
    sent = server.bytes_served / size
    await server.close()
    context.term()
    for number in range(count):
        assert (folder / f"r{number}/model.bin").stat().st_size == size
        shutil.rmtree(folder / f"r{number}")
    return {
        "s": max(outcome.done_at for outcome in outcomes) - began,
        "hash_cpu_s": sum(outcome.hash_s for outcome in outcomes),
        "copies": sent,
        "peer_copies": sum(served) / size,
    }


async def http(path: Path, folder: Path, count: int, rate: float = 0.0) -> float:
    """Every receiver downloads the file from one server; return the time to the last."""
    server = Child(http_server, str(path), rate)
    port = await server.receive()
    clients = [Child(http_client, port, str(folder / f"h{i}")) for i in range(count)]
    await asyncio.gather(*(client.receive() for client in clients))
    began = time.monotonic()
    for client in clients:
        client.pipe.send_bytes(b"go")
    last = max(await asyncio.gather(*(client.receive() for client in clients)))
    server.pipe.send_bytes(b"end")
    await asyncio.gather(*(child.end() for child in (server, *clients)))
    for number in range(count):
        shutil.rmtree(folder / f"h{number}")
    return float(last - began)


async def raw(path: Path, folder: Path) -> float:
    server = Child(raw_server, str(path), CHUNK_BYTES)
    port = await server.receive()
    size = path.stat().st_size
    target = folder / "raw"
    seconds = await asyncio.to_thread(raw_client, port, size, CHUNK_BYTES, str(target))
    target.unlink()
    await server.end()
    return seconds


def make_model(folder: Path, megabytes: int) -> Path:
    folder.mkdir()
    with (folder / "model.bin").open("wb") as file:
        for _ in range(megabytes):
            file.write(os.urandom(10**6))
    return folder


async def alone(root: Path, folder: Path, repeats: int) -> dict[str, float]:
    """One receiver, turn and turn about with the raw copy."""
    size = (root / "model.bin").stat().st_size
    raws, swarms = [], []
    for _ in range(repeats):
        raws.append(size / await raw(root / "model.bin", folder) / MB)
        swarms.append(size / (await swarm(root, folder, 1, 0.0))["s"] / MB)
    shares = [one / other for one, other in zip(swarms, raws, strict=True)]
    return {
        "raw_mb_s": statistics.median(raws),
        "alone_mb_s": statistics.median(swarms),
        "alone_over_raw": statistics.median(shares),
        "alone_over_raw_min": min(shares),
        "alone_over_raw_max": max(shares),
    }


async def measure(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    counts = [int(text) for text in args.receivers.split(",")]
    most = max(counts)
    root = make_model(folder / "model", args.megabytes)
    figures = {"megabytes": float(args.megabytes), "cores": float(len(os.sched_getaffinity(0)))}
    figures |= await alone(root, folder, args.repeats)
    for count in counts:
        found = await swarm(root, folder, count, 0.0)
        figures |= {f"free_{name}_{count}": value for name, value in found.items()}
        figures[f"http_s_{count}"] = await http(root / "model.bin", folder, count)
    cores = figures["cores"]
    without = {
        count: figures[f"free_s_{count}"] - figures[f"free_hash_cpu_s_{count}"] / cores
        for count in (1, most)
    }
    figures["free_time_ratio"] = figures[f"free_s_{most}"] / figures["free_s_1"]
    figures["free_time_ratio_without_hashing"] = without[most] / without[1]
    figures["free_http_over_swarm"] = figures[f"http_s_{most}"] / figures[f"free_s_{most}"]
    shutil.rmtree(root)
    root = make_model(folder / "small", args.linked_megabytes)
    for count in (1, most):
        found = await swarm(root, folder, count, args.link * MB)
        figures |= {f"linked_{name}_{count}": value for name, value in found.items()}
        seconds = await http(root / "model.bin", folder, count, args.link * MB)
        figures[f"linked_http_s_{count}"] = seconds
    figures["linked_time_ratio"] = figures[f"linked_s_{most}"] / figures["linked_s_1"]
    http_s = figures[f"linked_http_s_{most}"]
    figures["linked_http_over_swarm"] = http_s / figures[f"linked_s_{most}"]
    return figures


def choose_folder(needed: float) -> str | None:
    """Return shared memory where it has room, so that no disk is measured."""
    shared = "/dev/shm"
    if os.path.isdir(shared) and shutil.disk_usage(shared).free > needed * 1.2:
        return shared
    return None


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--receivers", default="1,2,4,8,16")
    parser.add_argument("--repeats", type=int, default=3, help="of the lone receiver")
    parser.add_argument("--link", type=float, default=8.0, help="MB/s of each host")
    parser.add_argument("--linked-megabytes", type=int, default=64)
    args = parser.parse_args()
    most = max(int(text) for text in args.receivers.split(","))
    needed = (most + 2) * args.megabytes * MB
    with tempfile.TemporaryDirectory(dir=choose_folder(needed), prefix="spotlight-") as folder:
        figures = asyncio.run(measure(args, Path(folder)))
    return finish(
        f"{args.megabytes} MB to 1..{most} receivers on loopback",
        figures,
        args,
        at_least={"alone_over_raw": 0.7},
        at_most={
            f"free_copies_{most}": 2.0,
            f"linked_copies_{most}": 2.0,
            "linked_time_ratio": 2.5,
        },
    )


if __name__ == "__main__":
    sys.exit(main())
