"""The agent's part in the swarm: fetch each version once, check it, serve it, keep two.

PublishedVersion -> Room (is there any?) -> Download -> fetch -> files -> on_ready
                                               '--> ChunkServer: what is here, others may have
AnnouncedVersion -> its manifest, fetched and served in the same way -> as above
"""

import asyncio
import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import zmq.asyncio

from spotlightd.errors import InputError, SpotlightError, TryAgainError
from spotlightd.weights import patch
from spotlightd.weights.chunks import MANIFEST, PATCH, ChunkStore, Download
from spotlightd.weights.client import Swarm, fetch
from spotlightd.weights.manifest import (
    decode_manifest,
    manifest_digest,
    manifest_manifest,
    patch_manifest,
    total_bytes,
)
from spotlightd.weights.room import Room, sentence
from spotlightd.weights.server import ChunkServer
from spotlightd.wire import weights as ww
from spotlightd.wire.messages import HeldWeights, Message, Welcome

logger = logging.getLogger(__name__)

VERSIONS_KEPT = 2
RETRY_S = 1.0
PEERS_TIMEOUT_S = 10.0
REBIND_S = 5.0

Key = tuple[ww.Kind, int]
News = ww.PublishedVersion | ww.AnnouncedVersion
OnReady = Callable[[ww.Manifest, Path], None]


@dataclass(frozen=True)
class Place:
    """Where and how this agent keeps and serves weights."""

    folder: Path
    """A disk, or shared memory such as /dev/shm/spotlight; workers map the files from here."""
    budget: int | None
    bind: str
    keys: tuple[str, str]
    """The agent's CURVE keys (public, secret)."""


class WeightPeer:
    """Args:
    send: to the daemon.
    on_ready: told a version's manifest and folder when every file lies there verified.
    on_failure: told why this VM cannot take part: there is no room for a version, or the daemon's
        manifest is none.
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        place: Place,
        send: Callable[[Message], None],
        on_ready: OnReady,
        on_failure: Callable[[SpotlightError], None],
    ) -> None:
        self._context = context
        self._place = place
        self._send = send
        self._on_ready = on_ready
        self._on_failure = on_failure
        self._room = Room(place.folder, place.budget)
        self._store = ChunkStore()
        self._server = ChunkServer(context, self._store, place.bind, 0)
        self._encrypted = False
        self._tickets: tuple[str, ...] = ()
        """Newest first."""
        self._serves = True
        self._answers: dict[Key, asyncio.Future[ww.Peers]] = {}
        self._fetches: dict[Key, asyncio.Task[None]] = {}
        self._wanted: dict[Key, str] = {}
        """What each fetch fetches: its folder's root hash."""
        self._instead: dict[Key, News] = {}
        """What is fetched as soon as a cancelled fetch of the same version has ended."""
        self._overtaken: set[Key] = set()
        """Fetches that are cancelled because nobody serves their version any more."""
        self._into: dict[Key, Path] = {}
        """Folders that fetches write to: never evicted."""
        self.fetched_from: dict[str, int] = {}
        """Chunks by peer since the start."""

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def holds(self) -> tuple[int, ...]:
        """Adapter versions that are here completely."""
        return tuple(self._store.versions("adapter"))

    @property
    def held(self) -> tuple[HeldWeights, ...]:
        """What is served to others, wholly or in part."""
        return self._store.held() if self._serves else ()

    def start(self) -> None:
        self._server.start()

    async def welcomed(self, welcome: Welcome) -> None:
        """Serve as the daemon wants it: how fast, and encrypted or not."""
        if welcome.weights_transport == "curve" and not self._encrypted:
            self._encrypted = True
            await self._encrypt()
        self._server.serving.uplink = welcome.weights_uplink

    def stop_serving(self) -> None:
        """A VM that goes away must not be waited for."""
        self._serves = False
        self._server.tickets = set()

    async def close(self) -> None:
        self._instead.clear()
        for task in self._fetches.values():
            task.cancel()
        await asyncio.gather(*self._fetches.values(), return_exceptions=True)
        await self._server.close()

    def handle(self, message: News | ww.Peers | ww.PeerTicket) -> None:
        match message:
            case ww.PeerTicket():
                self._renewed(message.tickets)
            case ww.Peers():
                self._renewed((message.ticket, *self._tickets))
                waiting = self._answers.pop((message.kind, message.version), None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
            case ww.PublishedVersion():
                manifest = message.manifest
                # The same version may come with other content, after a daemon repeated an update.
                if self._store.manifest(manifest.kind, manifest.version) != manifest:
                    self._begin((manifest.kind, manifest.version), message)
            case ww.AnnouncedVersion():
                self._begin((message.kind, message.version), message)

    def _renewed(self, tickets: Sequence[str]) -> None:
        self._tickets = tuple(dict.fromkeys(tickets))[:2]
        if self._serves:
            self._server.tickets = set(self._tickets)

    async def _encrypt(self) -> None:
        """Serve on the same port, under this agent's key; the port is free in a moment."""
        port = self._server.port
        await self._server.close()
        deadline = asyncio.get_running_loop().time() + REBIND_S
        while True:
            try:
                server = ChunkServer(
                    self._context, self._store, self._place.bind, port, self._place.keys
                )
                break
            except TryAgainError:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(0.02)
        server.tickets = self._server.tickets
        self._server = server
        server.start()

    # --- fetching -----------------------------------------------------------------------------

    def _begin(self, key: Key, message: News) -> None:
        if not message.current:
            return
        if isinstance(message, ww.AnnouncedVersion):
            # A base model has no patch, so that its manifest's digest is its root hash.
            root = message.digest
        else:
            root = manifest_digest(message.manifest)
        if key in self._fetches:
            if self._wanted[key] != root:
                # A daemon that was killed repeated the update: nobody serves the older content.
                self._instead[key] = message
                self._fetches[key].cancel()
            return
        for kind, version in list(self._fetches):
            if kind == key[0] and version <= key[1] - VERSIONS_KEPT:
                self._overtaken.add((kind, version))
                self._fetches[kind, version].cancel()
        self._wanted[key] = root
        self._into[key] = self._folder(*key, root)
        task = asyncio.create_task(self._fetch(key, message), name=f"fetch {key}")
        self._fetches[key] = task
        task.add_done_callback(lambda task: self._fetched(key, task))

    def _fetched(self, key: Key, task: "asyncio.Task[None]") -> None:
        folder = self._into.pop(key)
        del self._fetches[key], self._wanted[key]
        if key in self._overtaken:
            self._overtaken.discard(key)
            if task.cancelled():
                self._store.drop(*key)
                _remove(folder)
        if key in self._instead:
            self._begin(key, self._instead.pop(key))
            return
        if not task.cancelled() and (error := task.exception()) is not None:
            why = f"fetching {key[0]} {key[1]}: {type(error).__name__}: {error}"
            self._on_failure(TryAgainError(why))

    async def _fetch(self, key: Key, message: News) -> None:
        peers: Sequence[ww.WeightPeer] = message.peers
        folder = self._into[key]
        while True:
            try:
                manifest = await self._manifest(message, _beside(folder, MANIFEST), peers)
                if self._store.manifest(*key) == manifest:
                    return
                await self._make_room(manifest, folder)
                await self._patch(manifest, folder, peers)
                download = await asyncio.to_thread(Download, manifest, folder, self._store)
                counts = await self._fill(download, peers, key)
                break
            except InputError as error:
                self._on_failure(error)
                return
            except (SpotlightError, TimeoutError) as error:
                reason = str(error) or "the daemon does not say who serves it"
                logger.warning("fetching %s %d: %s", *key, reason)
                await asyncio.sleep(RETRY_S)
                peers = ()
        self._store.add(manifest, folder)
        self._forget_old()
        what = f"{manifest.kind} version {manifest.version}"
        logger.info("%s is here: chunks by peer %s, %d reused", what, counts, download.reused)
        self._on_ready(manifest, folder)

    async def _manifest(
        self, message: News, folder: Path, peers: Sequence[ww.WeightPeer]
    ) -> ww.Manifest:
        """Return the manifest; where only its digest was announced, fetch it, and serve it."""
        if isinstance(message, ww.PublishedVersion):
            return message.manifest
        key: Key = (message.kind, message.version)
        download = await asyncio.to_thread(Download, manifest_manifest(message), folder)
        await self._fill(download, peers, key, MANIFEST)
        manifest = decode_manifest((folder / "manifest").read_bytes())
        if (manifest.kind, manifest.version) != key:
            raise InputError(f"the manifest of {key} is of {manifest.kind} {manifest.version}")
        return manifest

    async def _fill(
        self, download: Download, peers: Sequence[ww.WeightPeer], key: Key, part: str = ""
    ) -> dict[str, int]:
        """Fetch what is missing while serving what is there."""
        root = self._store.begin(download, part)
        self._server.gained(root, self._store.have(root).bit_count())
        if not download.missing:
            download.finish()
            return {}

        def gained(digest: str) -> None:
            self._server.gained(root, self._store.gained(root, digest))

        swarm = Swarm(
            lambda: self._tickets[0],
            lambda peer, digest: self._send(ww.BadPeer(peer, digest)),
            lambda starved: self._who_has(key, starved),
            gained,
            self._place.keys,
        )
        if not peers or not self._tickets:
            peers = await self._who_has(key, starved=False)
        counts = await fetch(self._context, download, peers, swarm)
        for peer, count in counts.items():
            self.fetched_from[peer] = self.fetched_from.get(peer, 0) + count
        return counts

    async def _who_has(self, key: Key, starved: bool) -> Sequence[ww.WeightPeer]:
        answer = self._answers.setdefault(key, asyncio.get_running_loop().create_future())
        self._send(ww.WhoHas(*key, starved))
        try:
            async with asyncio.timeout(PEERS_TIMEOUT_S):
                return (await asyncio.shield(answer)).peers
        finally:
            self._answers.pop(key, None)

    async def _patch(
        self, manifest: ww.Manifest, folder: Path, peers: Sequence[ww.WeightPeer]
    ) -> None:
        """Make the files from the version before, where a patch says how; what it does not make
        is fetched. Nothing is believed before its digest was checked.
        """
        parent = self._store.folder(manifest.kind, manifest.version - 1)
        root = self._store.root(manifest.kind, manifest.version - 1)
        if manifest.patch is None or parent is None or root != manifest.patch.parent:
            return
        described, scratch = patch_manifest(manifest), _beside(folder, PATCH)
        download = await asyncio.to_thread(Download, described, scratch)
        await self._fill(download, peers, (manifest.kind, manifest.version), PATCH)
        try:
            await asyncio.to_thread(patch.apply, scratch / "patch", parent, folder)
        except InputError as error:
            logger.error("%s: all that changed is fetched instead", error)
            return
        logger.info("%s %d is made from a patch", manifest.kind, manifest.version)

    # --- room ---------------------------------------------------------------------------------

    async def _make_room(self, manifest: ww.Manifest, folder: Path) -> None:
        """Evict what is needed no more. Raises InputError where that is not enough."""
        needed = await asyncio.to_thread(self._needed, manifest, folder)
        if needed > self._room.free():
            self._evict(keep=folder)
        free = self._room.free()
        if needed > free:
            self._send(ww.NoRoom(manifest.kind, manifest.version, needed, free))
            what = f"{manifest.kind} version {manifest.version}"
            raise InputError(sentence(what, needed, free, self._place.folder))

    def _needed(self, manifest: ww.Manifest, folder: Path) -> int:
        """Return the bytes to write; what an earlier process left is there already."""
        return max(total_bytes(manifest) - Room(folder).used(), 0)

    def _evict(self, keep: Path) -> None:
        """Remove base models and adapters of other runs, and versions that nobody needs."""
        self._forget_old()
        held = (self._store.folder(h.kind, h.version) for h in self._store.held())
        used = {keep, *self._into.values(), *held}
        for parent in ("models", "weights"):
            for folder in (self._place.folder / parent).glob("*"):
                if _owner(folder) not in used:
                    logger.info("removing %s to make room", folder)
                    shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, kind: ww.Kind, version: int, root: str) -> Path:
        if kind == "base":
            return self._place.folder / "models" / root[:16]
        return self._place.folder / "weights" / str(version)

    def _forget_old(self) -> None:
        for version in self._store.versions("adapter")[:-VERSIONS_KEPT]:
            folder = self._store.drop("adapter", version)
            if folder is not None:
                _remove(folder)


def _beside(folder: Path, part: str) -> Path:
    """Where a version's patch or manifest lies."""
    return folder.with_name(f".{part[1:]}-{folder.name}")


def _remove(folder: Path) -> None:
    """Remove a version's folder, and what lies beside it."""
    for gone in (folder, _beside(folder, PATCH), _beside(folder, MANIFEST)):
        shutil.rmtree(gone, ignore_errors=True)


def _owner(folder: Path) -> Path:
    """Return the version's folder, also of what lies beside it."""
    name = folder.name
    return folder.with_name(name.partition("-")[2] if name.startswith(".") else name)
