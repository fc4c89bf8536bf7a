"""The agent's part in the swarm: fetch each version once, check it, serve it, keep two."""

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import zmq.asyncio

from spotlightd.errors import SpotlightError
from spotlightd.weights.chunks import ChunkStore, Download
from spotlightd.weights.client import fetch
from spotlightd.weights.manifest import manifest_digest
from spotlightd.weights.server import ChunkServer
from spotlightd.wire import messages as m

logger = logging.getLogger(__name__)

VERSIONS_KEPT = 2
RETRY_S = 1.0
PEERS_TIMEOUT_S = 10.0

Key = tuple[str, int]


class WeightPeer:
    """Args:
    send: to the daemon.
    on_ready: told (kind, version, folder) when every file of a version lies there verified.
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        state_dir: Path,
        bind: str,
        send: Callable[[m.Message], None],
        on_ready: Callable[[str, int, Path], None],
    ) -> None:
        self._context = context
        self._state_dir = state_dir
        self._send = send
        self._on_ready = on_ready
        self._store = ChunkStore()
        self._server = ChunkServer(context, self._store, bind, 0)
        self._peers: dict[Key, asyncio.Future[m.Peers]] = {}
        self._fetches: dict[Key, asyncio.Task[None]] = {}
        self.fetched_from: dict[str, int] = {}
        """Chunks by peer since the start."""

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def holds(self) -> tuple[int, ...]:
        """Adapter versions that are served to others."""
        return tuple(self._store.versions("adapter"))

    def start(self) -> None:
        self._server.start()

    def stop_serving(self) -> None:
        """A VM that goes away must not be waited for."""
        self._server.tickets = set()

    async def close(self) -> None:
        for task in self._fetches.values():
            task.cancel()
        await asyncio.gather(*self._fetches.values(), return_exceptions=True)
        await self._server.close()

    def handle(self, message: m.PublishedVersion | m.Peers | m.PeerTicket) -> None:
        match message:
            case m.PeerTicket():
                self._server.tickets = set(message.tickets)
            case m.Peers():
                waiting = self._peers.pop((message.kind, message.version), None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
            case m.PublishedVersion():
                self._begin(message)

    def _begin(self, message: m.PublishedVersion) -> None:
        manifest = message.manifest
        key = (manifest.kind, manifest.version)
        # The same version may come with other content, after a daemon repeated an update.
        held = self._store.manifest(*key) == manifest
        if held or not message.current or key in self._fetches:
            return
        for kind, version in list(self._fetches):
            if kind == manifest.kind and version <= manifest.version - VERSIONS_KEPT:
                # Nobody serves it any more.
                self._fetches[kind, version].cancel()
        task = asyncio.create_task(self._fetch(manifest), name=f"fetch {key}")
        self._fetches[key] = task
        task.add_done_callback(lambda _: self._fetches.pop(key, None))

    async def _fetch(self, manifest: m.Manifest) -> None:
        folder = self._folder(manifest)
        while True:
            try:
                download = await asyncio.to_thread(Download, manifest, folder)
                counts = await self._fill(manifest, download)
                break
            except (SpotlightError, TimeoutError) as error:
                reason = str(error) or "the daemon does not say who serves it"
                logger.warning("fetching %s %d: %s", manifest.kind, manifest.version, reason)
                await asyncio.sleep(RETRY_S)
        for peer, count in counts.items():
            self.fetched_from[peer] = self.fetched_from.get(peer, 0) + count
        self._store.add(manifest, folder)
        self._forget_old()
        logger.info("%s version %d is here: chunks by peer %s", *_named(manifest), counts)
        self._on_ready(manifest.kind, manifest.version, folder)

    async def _fill(self, manifest: m.Manifest, download: Download) -> dict[str, int]:
        if not download.missing:
            download.finish()
            return {}
        key = (manifest.kind, manifest.version)
        self._peers[key] = asyncio.get_running_loop().create_future()
        self._send(m.WhoHas(*key))
        async with asyncio.timeout(PEERS_TIMEOUT_S):
            answer = await self._peers[key]
        return await fetch(
            self._context,
            download,
            answer.peers,
            answer.ticket,
            lambda peer, digest: self._send(m.BadPeer(peer, digest)),
        )

    def _folder(self, manifest: m.Manifest) -> Path:
        if manifest.kind == "base":
            return self._state_dir / "models" / manifest_digest(manifest)[:16]
        return self._state_dir / "weights" / str(manifest.version)

    def _forget_old(self) -> None:
        for version in self._store.versions("adapter")[:-VERSIONS_KEPT]:
            folder = self._store.drop("adapter", version)
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)


def _named(manifest: m.Manifest) -> tuple[str, int]:
    return manifest.kind, manifest.version
