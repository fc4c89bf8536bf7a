"""Mutated chunk requests to a real chunk server, and mutated chunks to a real download."""

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from random import Random

import zmq
import zmq.asyncio

from spotlightd.weights.chunks import ChunkStore, Download
from spotlightd.weights.client import Swarm, fetch
from spotlightd.weights.manifest import build_manifest, chunk_places
from spotlightd.weights.server import ChunkServer
from spotlightd.wire.codec import LINK, frame_specs
from spotlightd.wire.weights import Chunk, GetChunk, GetNews, Manifest, News, WeightPeer
from tests.fuzz.corpus import LINK_MAKERS, TICKET, Parts, encode, link_message
from tests.fuzz.escaped import Escaped
from tests.fuzz.mutate import mutated

CHUNK = 4096
LIES_PER_REQUEST = 8
SILENCE_S = 1.5


class WeightsTarget:
    """One folder of weights, served honestly and by liars."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self.folder = seed, folder
        self.outcomes: Counter[str] = Counter()
        self.root = folder / "published"
        self.root.mkdir()
        (self.root / "w.safetensors").write_bytes(Random(seed).randbytes(12 * CHUNK + 5))
        self.manifest = build_manifest("base", 0, self.root, CHUNK)
        self.context = zmq.asyncio.Context()
        store = ChunkStore()
        store.add(self.manifest, self.root)
        self.server = ChunkServer(self.context, store, "127.0.0.1", 0)
        self.server.tickets = {TICKET}
        self.server.start()
        self.peer = WeightPeer("daemon", f"tcp://127.0.0.1:{self.server.port}", complete=True)

    async def close(self) -> None:
        await self.server.close()
        self.context.destroy(linger=0)

    async def ask_badly(self, first: int, count: int) -> None:
        """Send mutated requests, then fetch a chunk as an agent does. Raises Escaped."""
        socket = self.context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(self.peer.endpoint)
        digests = [place.digest for place in chunk_places(self.manifest)]
        for index in range(first, first + count):
            rng = Random(f"{self.seed}:ask:{index}")
            asked = encode(LINK, (GetChunk(TICKET, rng.choice(digests)), {}))
            await socket.send_multipart(
                mutated(rng, asked, link_message(rng, LINK_MAKERS, ())) or [b""]
            )
            self.outcomes["asked"] += 1
            await self._drain(socket)
        socket.close()
        await self._honest_fetch(f"after request {first + count} of seed {self.seed}", [self.peer])

    async def _drain(self, socket: zmq.asyncio.Socket) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                answer, _ = LINK.decode(await socket.recv_multipart(zmq.NOBLOCK))
                self.outcomes[f"answered {type(answer).__name__}"] += 1

    async def answer_badly(self, index: int) -> None:
        """Download from two liars and the honest server. Raises Escaped."""
        liars = [
            Liar(self.context, self.manifest, self.root, Random(f"{self.seed}:{index}:{i}"))
            for i in range(2)
        ]
        try:
            peers = [*(liar.peer(i) for i, liar in enumerate(liars)), self.peer]
            await self._honest_fetch(f"download {index} of seed {self.seed}", peers)
        finally:
            for liar in liars:
                self.outcomes["lies"] += liar.told
                await liar.close()

    async def _honest_fetch(self, what: str, peers: list[WeightPeer]) -> None:
        folder = self.folder / "got"
        bad: list[str] = []
        try:
            download = Download(self.manifest, folder)
            async with asyncio.timeout(30):
                await fetch(
                    self.context,
                    download,
                    peers,
                    Swarm(
                        lambda: TICKET,
                        lambda peer, _: bad.append(peer),
                        timeout_s=SILENCE_S,
                    ),
                )
            same = (folder / "w.safetensors").read_bytes() == (
                self.root / "w.safetensors"
            ).read_bytes()
            assert same, "the files differ"
            assert "daemon" not in bad, "the honest peer was dropped"
        except Exception as error:
            raise Escaped(f"{what}: {error!r}") from error
        self.outcomes["liars named"] += len(bad)
        (folder / "w.safetensors").unlink()


class Liar:
    """A peer that answers each request with several mutated chunks."""

    def __init__(
        self, context: zmq.asyncio.Context, manifest: Manifest, root: Path, rng: Random
    ) -> None:
        self.told = 0
        self._rng = rng
        self._root = root
        self._places = {place.digest: place for place in chunk_places(manifest)}
        self._socket = context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self._task = asyncio.create_task(self._lie())

    def peer(self, number: int) -> WeightPeer:
        return WeightPeer(f"liar-{number}", f"tcp://127.0.0.1:{self._port}")

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._socket.close()

    async def _lie(self) -> None:
        while True:
            route, *parts = await self._socket.recv_multipart()
            message, _ = LINK.decode(parts)
            if isinstance(message, GetNews):
                await self._claim(route, message)
                continue
            assert isinstance(message, GetChunk)
            for _ in range(LIES_PER_REQUEST):
                lie = mutated(self._rng, self._truth(message.digest), self._truth(message.digest))
                await self._socket.send_multipart([route, *(lie or [b""])])
                self.told += 1

    async def _claim(self, route: bytes, asked: GetNews) -> None:
        """Say that everything is here, so as to be asked; before that, something mutated."""
        everything = (1 << len(self._places)) - 1
        news = News(asked.root, everything.to_bytes(-(-len(self._places) // 8), "little"))
        parts = encode(LINK, (news, {}))
        for told in (mutated(self._rng, parts, parts) or [b""], parts):
            await self._socket.send_multipart([route, *told])
            self.told += 1

    def _truth(self, digest: str) -> Parts:
        place = self._places[digest]
        with (self._root / place.path).open("rb") as file:
            file.seek(place.offset)
            data = file.read(place.size)
        # Now and then of another chunk than it says.
        named = self._rng.choice(list(self._places)) if self._rng.random() < 0.3 else digest
        return encode(LINK, (Chunk(named, frame_specs(chunk=data)), {"chunk": data}))
