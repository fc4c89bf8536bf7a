"""Transfers under fire: python -m tests.chaos.transfers [--kills 120] [--seed 1]

A source, four receivers that serve one another, and two peers that lie: one flips a bit of each
chunk, one serves chunks of an older version under the names of the new ones. The source, as the
daemon's server, or a receiver in mid-transfer is killed (SIGKILL) again and again and started
again on the same folder and port. When all receivers are complete they begin anew.

What must hold: every transfer completes; the files are the source's, bit for bit; a receiver that
was killed writes again at most the chunks that were in flight; both liars are named by whoever
asked them, and nobody else is.
"""

import argparse
import asyncio
import contextlib
import multiprocessing as mp
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random

import zmq.asyncio

from spotlightd.errors import TryAgainError
from spotlightd.weights.chunks import ChunkStore, Download
from spotlightd.weights.client import Swarm, fetch
from spotlightd.weights.fetch import MOST_IN_FLIGHT
from spotlightd.weights.manifest import build_manifest, chunk_order
from spotlightd.weights.serve import AGAIN_S
from spotlightd.weights.server import ChunkServer
from spotlightd.wire.weights import Manifest, WeightPeer

FORK = mp.get_context("fork")
CHUNK = 64 * 1024
CHUNKS = 96
RECEIVERS = 4
UPLINK = 3e6
"""Bytes a second of each host: a round takes long enough to be struck in the middle."""
TICKET = "t" * 24
LIARS = ("liar", "stale")


class Flipping(ChunkStore):
    """Serves every chunk with one bit wrong."""

    def view(self, digest: str) -> memoryview | None:
        data = super().view(digest)
        return None if data is None else memoryview(bytes([data[0] ^ 1]) + bytes(data[1:]))


class Stale(ChunkStore):
    """Serves the chunk that stood in the same place in an older version."""

    def __init__(self, old: dict[str, bytes]) -> None:
        super().__init__()
        self._old = old

    def view(self, digest: str) -> memoryview | None:
        data = self._old.get(digest)
        return None if data is None else memoryview(data)


@dataclass
class Plan:
    """What every host of the scene knows."""

    folder: Path
    manifest: Manifest
    ports: dict[str, int]

    def peers(self, but: str) -> tuple[WeightPeer, ...]:
        return tuple(
            WeightPeer(
                name, f"tcp://127.0.0.1:{port}", near=name != "daemon", complete=name == "daemon"
            )
            for name, port in self.ports.items()
            if name != but
        )


def note(path: Path, line: str) -> None:
    """Append a line, whole or not at all."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def serve(plan: Plan, name: str, store: ChunkStore) -> None:
    asyncio.run(_serve(plan, name, store))


async def _serve(plan: Plan, name: str, store: ChunkStore) -> None:
    server = await _start_server(zmq.asyncio.Context(), store, plan.ports[name], name == "daemon")
    store.add(plan.manifest, plan.folder / "source")
    assert server.port
    await asyncio.Event().wait()


async def _start_server(
    context: zmq.asyncio.Context, store: ChunkStore, port: int, alone: bool
) -> ChunkServer:
    """The kernel frees a killed process's port a moment after it is gone."""
    for _ in range(500):
        with contextlib.suppress(TryAgainError):
            server = ChunkServer(
                context, store, "127.0.0.1", port, again_s=AGAIN_S if alone else 0.0
            )
            server.serving.uplink, server.serving.again_bytes = UPLINK, CHUNK
            server.tickets = {TICKET}
            server.start()
            return server
        await asyncio.sleep(0.01)
    raise TryAgainError(f"port {port} does not become free")


def receive(plan: Plan, name: str) -> None:
    asyncio.run(_receive(plan, name))


async def _receive(plan: Plan, name: str) -> None:
    """Fetch, say so, and serve until killed."""
    home = plan.folder / name
    context, store = zmq.asyncio.Context(), ChunkStore()
    server = await _start_server(context, store, plan.ports[name], alone=False)
    download = Download(plan.manifest, home / "files")
    root = store.begin(download)

    def gained(digest: str) -> None:
        note(home / "written", digest)
        server.gained(root, store.gained(root, digest))

    async def find_peers(_: bool) -> Sequence[WeightPeer]:
        return plan.peers(name)

    def bad_peer(peer: str, _: str) -> None:
        note(home / "named", peer)

    swarm = Swarm(lambda: TICKET, bad_peer, find_peers, gained, timeout_s=5.0)
    while download.missing:
        with contextlib.suppress(TryAgainError):
            await fetch(context, download, plan.peers(name), swarm)
    download.finish()
    (home / "done").touch()
    await asyncio.Event().wait()


@dataclass
class Scene:
    """All hosts, who was killed how often, and what was found."""

    plan: Plan
    rng: Random
    processes: dict[str, BaseProcess] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)
    round_kills: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    named: Counter[str] = field(default_factory=Counter)
    rewritten: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def receivers(self) -> list[str]:
        return [f"vm{i}" for i in range(RECEIVERS)]

    def start(self, name: str) -> None:
        plan = self.plan
        if name in self.receivers:
            (plan.folder / name).mkdir(exist_ok=True)
            process = FORK.Process(target=receive, args=(plan, name), daemon=True)
        else:
            store = {"daemon": ChunkStore, "liar": Flipping}.get(name, self._stale)()
            process = FORK.Process(target=serve, args=(plan, name, store), daemon=True)
        process.start()
        self.processes[name] = process

    def _stale(self) -> Stale:
        old = (self.plan.folder / "old").read_bytes()
        order = chunk_order(self.plan.manifest)
        return Stale({d: old[i * CHUNK : (i + 1) * CHUNK] for i, d in enumerate(order)})

    def kill(self, name: str) -> None:
        process = self.processes[name]
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        self.kills[name] += 1
        self.round_kills[name] += 1

    def complete(self) -> bool:
        return all((self.plan.folder / name / "done").exists() for name in self.receivers)

    def in_the_middle(self) -> list[str]:
        """Return receivers that have some chunks and not all, and the source while there are."""
        names = []
        for name in self.receivers:
            home = self.plan.folder / name
            if (home / "written").exists() and not (home / "done").exists():
                names.append(name)
        return [*names, "daemon"] if names else []

    def end_round(self) -> None:
        """Audit what every receiver has, then begin anew."""
        source = (self.plan.folder / "source/model.bin").read_bytes()
        for name in self.receivers:
            home = self.plan.folder / name
            if (home / "files/model.bin").read_bytes() != source:
                self.problems.append(f"round {self.rounds}: the file of {name} differs")
            written = (home / "written").read_text().split()
            again = len(written) - len(set(written))
            self.rewritten += again
            if again > MOST_IN_FLIGHT * self.round_kills[name]:
                self.problems.append(
                    f"round {self.rounds}: {name} wrote {again} chunks again after "
                    f"{self.round_kills[name]} kills"
                )
            named = (home / "named").read_text().split() if (home / "named").exists() else []
            self.named.update(named)
            for wrong in set(named) - set(LIARS):
                self.problems.append(f"round {self.rounds}: {name} named the honest {wrong}")
            process = self.processes[name]
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            shutil.rmtree(home)
        self.rounds += 1
        self.round_kills.clear()

    def run(self, kills: int, limit_s: float) -> None:
        """Strike until enough were killed and the last round is complete."""
        deadline = time.monotonic() + limit_s
        for name in ("daemon", *LIARS, *self.receivers):
            self.start(name)
        strike_at = time.monotonic() + 0.3
        while True:
            now = time.monotonic()
            if now > deadline:
                self.problems.append(f"not complete after {limit_s:.0f} s in round {self.rounds}")
                return
            if self.complete():
                self.end_round()
                if self.kills.total() >= kills:
                    return
                for name in self.receivers:
                    self.start(name)
            elif now > strike_at and self.kills.total() < kills:
                struck = self.in_the_middle()
                if struck:
                    name = self.rng.choice(struck)
                    self.kill(name)
                    self.start(name)
                    strike_at = now + self.rng.uniform(0.05, 0.4)
            # Hosts report by files: looking is all that the supervisor can do.
            time.sleep(0.01)

    def close(self) -> None:
        for process in self.processes.values():
            if process.is_alive():
                process.kill()
            process.join()


def free_ports(names: Sequence[str]) -> dict[str, int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in names]
    ports = {n: s.getsockname()[1] for n, s in zip(names, sockets, strict=True)}
    for one in sockets:
        one.close()
    return ports


def play(folder: Path, kills: int, seed: int, limit_s: float) -> Scene:
    """Return the scene after its last round."""
    rng = Random(seed)
    (folder / "source").mkdir()
    (folder / "source/model.bin").write_bytes(rng.randbytes(CHUNKS * CHUNK))
    (folder / "old").write_bytes(rng.randbytes(CHUNKS * CHUNK))
    manifest = build_manifest("base", 0, folder / "source", CHUNK)
    names = ["daemon", *LIARS, *(f"vm{i}" for i in range(RECEIVERS))]
    scene = Scene(Plan(folder, manifest, free_ports(names)), rng)
    try:
        scene.run(kills, limit_s)
    finally:
        scene.close()
    if set(scene.named) != set(LIARS):
        scene.problems.append(f"named: {dict(scene.named)}, expected both of {LIARS}")
    return scene


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=900.0, help="seconds")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spotlight-") as folder:
        scene = play(Path(folder), args.kills, args.seed, args.limit)
    print(f"{scene.kills.total()} kills {dict(scene.kills)} in {scene.rounds} rounds")
    print(f"{scene.rewritten} chunks written twice; liars named {dict(scene.named)}")
    for problem in scene.problems:
        print(f"problem: {problem}")
    return 1 if scene.problems else 0


if __name__ == "__main__":
    sys.exit(main())
