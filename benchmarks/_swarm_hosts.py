"""Processes of the loopback benchmark: receivers of a version, and what they are compared with.

Each receiver is a process with a chunk server of its own, as an agent has. The parent is the
daemon: its chunk server, its desk, and a pipe to each receiver in place of the fleet link.
"""

import asyncio
import mmap
import multiprocessing as mp
import os
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from spotlightd.weights import chunks
from spotlightd.weights.chunks import ChunkStore, Download
from spotlightd.weights.client import Swarm, fetch
from spotlightd.weights.server import ChunkServer
from spotlightd.wire.weights import Manifest, WeightPeer

SPAWN = mp.get_context("spawn")
CREDITS = 4


class Order(msgspec.Struct):
    """What a receiver is told: fetch this from these."""

    manifest: Manifest
    peers: tuple[WeightPeer, ...]
    ticket: str


class Outcome(msgspec.Struct):
    """What a receiver reports. Times in seconds, `done_at` on the monotonic clock of the host."""

    done_at: float
    hash_s: float
    """CPU time of hashing, all threads."""
    cpu_s: float
    """CPU time of the process, from the order to the end."""
    served: int
    """Bytes sent to others by then."""


class _Hashing:
    """Counts the CPU time that verification takes."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._digest_of = chunks.digest_of

    def __call__(self, data: Any) -> str:
        began = time.thread_time()
        digest = self._digest_of(data)
        self.seconds += time.thread_time() - began
        return digest


def receiver(pipe: Connection, folder: str, uplink: float) -> None:
    """Say the port, take the order, fetch, report, and serve until the pipe closes."""
    hashing = _Hashing()
    chunks.digest_of = hashing  # type: ignore[assignment]
    asyncio.run(_receive(pipe, Path(folder), uplink, hashing))


async def _receive(pipe: Connection, folder: Path, uplink: float, hashing: _Hashing) -> None:
    context, store = zmq.asyncio.Context(), ChunkStore()
    server = ChunkServer(context, store, "127.0.0.1", 0)
    server.serving.uplink = uplink
    pipe.send(server.port)
    order = msgspec.msgpack.decode(await asyncio.to_thread(pipe.recv_bytes), type=Order)
    server.tickets = {order.ticket}
    server.start()
    began_cpu = time.process_time()
    download = Download(order.manifest, folder)
    root = store.begin(download)

    def gained(digest: str) -> None:
        server.gained(root, store.gained(root, digest))

    async def find_peers(_: bool) -> Sequence[WeightPeer]:
        return order.peers

    def bad_peer(peer: str, digest: str) -> None:
        raise AssertionError(f"{peer} served a bad chunk {digest}")

    swarm = Swarm(lambda: order.ticket, bad_peer, find_peers, gained)
    await fetch(context, download, order.peers, swarm)
    done_at, cpu_s = time.monotonic(), time.process_time() - began_cpu
    # What left this host is known at the end, when nobody needs it any more.
    pipe.send_bytes(msgspec.msgpack.encode(Outcome(done_at, hashing.seconds, cpu_s, 0)))
    await asyncio.to_thread(pipe.recv_bytes)
    pipe.send_bytes(msgspec.msgpack.encode(server.bytes_served))
    await server.close()
    context.term()


def http_server(pipe: Connection, path: str, rate: float) -> None:
    """What a user would write first: aiohttp serves the file to everybody, at most at `rate`."""
    from aiohttp import web

    async def send(request: web.Request) -> web.StreamResponse:
        if not rate:
            return web.FileResponse(path)
        response = web.StreamResponse()
        response.content_length = os.path.getsize(path)
        await response.prepare(request)
        with open(path, "rb") as file:
            while data := file.read(2**18):
                # One uplink for all: each piece waits for those before it.
                at = uplink[0] = max(uplink[0], time.monotonic()) + len(data) / rate
                await asyncio.sleep(max(at - time.monotonic(), 0.0))
                await response.write(data)
        return response

    uplink = [0.0]

    async def serve() -> None:
        application = web.Application()
        application.router.add_get("/weights", send)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert runner.addresses
        pipe.send(runner.addresses[0][1])
        await asyncio.to_thread(pipe.recv_bytes)
        await runner.cleanup()

    asyncio.run(serve())


def http_client(pipe: Connection, port: int, folder: str) -> None:
    """Download the file once; report when it was whole."""
    import aiohttp

    async def download() -> None:
        Path(folder).mkdir(parents=True)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            pipe.send(0)
            await asyncio.to_thread(pipe.recv_bytes)
            with open(f"{folder}/weights", "wb") as file:
                async with session.get(f"http://127.0.0.1:{port}/weights") as response:
                    async for data in response.content.iter_chunked(2**20):
                        file.write(data)
        pipe.send(time.monotonic())

    asyncio.run(download())


def raw_server(pipe: Connection, path: str, chunk_bytes: int) -> None:
    """Send a mapped file over ZeroMQ, a chunk for each number asked; hashes nothing."""
    socket = zmq.Context().socket(zmq.ROUTER)
    pipe.send(socket.bind_to_random_port("tcp://127.0.0.1"))
    with open(path, "rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    while True:
        route, asked = socket.recv_multipart()
        if not asked:
            return
        offset = int(asked) * chunk_bytes
        socket.send_multipart([route, asked, data[offset : offset + chunk_bytes]], copy=False)


def raw_client(port: int, size: int, chunk_bytes: int, target: str) -> float:
    """Copy the file, four chunks asked ahead; return the seconds."""
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.connect(f"tcp://127.0.0.1:{port}")
    count = -(-size // chunk_bytes)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT, 0o644)
    began = time.monotonic()
    for number in range(min(CREDITS, count)):
        socket.send(str(number).encode())
    for received in range(count):
        number, data = socket.recv_multipart(copy=False)
        os.pwrite(descriptor, data.buffer, int(number.bytes) * chunk_bytes)
        if received + CREDITS < count:
            socket.send(str(received + CREDITS).encode())
    seconds = time.monotonic() - began
    socket.send(b"")
    os.close(descriptor)
    socket.close(linger=1000)
    return seconds
