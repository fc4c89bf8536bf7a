"""Which weights exist, who serves them, and with which ticket."""

import logging
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path
from random import Random

import msgspec

from spotlightd.atomic import digest_of, write_file
from spotlightd.fleet.membership import Member
from spotlightd.weights import patch
from spotlightd.weights.chunks import MANIFEST, PATCH, ChunkStore
from spotlightd.weights.holders import Holders, Key, Pointed
from spotlightd.weights.manifest import (
    LONG_MANIFEST,
    build_manifest,
    chunk_digests,
    encode_manifest,
    manifest_digest,
    manifest_manifest,
    patch_manifest,
)
from spotlightd.weights.remembered import RememberedDigests
from spotlightd.weights.server import ChunkServer
from spotlightd.wire.messages import Heartbeat, Message
from spotlightd.wire.weights import (
    MAX_MANIFEST_BYTES,
    AnnouncedVersion,
    BadPeer,
    GetManifest,
    Manifest,
    NoRoom,
    Patch,
    Peers,
    PeerTicket,
    PublishedVersion,
    WeightPeer,
    WhoHas,
)

logger = logging.getLogger(__name__)

DAEMON = "daemon"
VERSIONS_KEPT = 2
TICKET_S = 300.0
"""A new ticket is given out after so long; the one before it is valid once more as long."""

FromAgent = GetManifest | WhoHas | BadPeer | NoRoom


class WeightsDesk:
    """The daemon's side of the swarm: it knows the holders, and carries bytes only as one of them.

    Args:
        endpoint: where this daemon's chunk server is reached.
        key: the daemon's CURVE key where chunks travel encrypted, else empty.
        remembered: digests of earlier runs of the daemon.
        notes: folder of its own for long manifests, which are served as chunks; None: manifests of
            any length are part of the announcement.
    """

    def __init__(
        self,
        chunks: ChunkStore,
        server: ChunkServer,
        endpoint: str,
        chunk_bytes: int,
        key: str = "",
        remembered: RememberedDigests | None = None,
        rng: Random | None = None,
        notes: Path | None = None,
    ) -> None:
        self.holders = Holders(rng or Random())
        self._chunks = chunks
        self._server = server
        self._daemon = WeightPeer(DAEMON, endpoint, key, complete=True)
        self._chunk_bytes = chunk_bytes
        self._remembered = remembered
        self._notes = notes
        if notes is not None:
            shutil.rmtree(notes, ignore_errors=True)
        self._manifests: dict[Key, Manifest] = {}
        self._announced: dict[Key, AnnouncedVersion] = {}
        """Those with a long manifest."""
        self._hears: set[str] = set()
        """Agents that know AnnouncedVersion."""
        self._endpoints: dict[str, WeightPeer] = {}
        self._tickets: list[str] = []
        self._ticket_at: float | None = None
        self._renew_ticket()
        self.current_version: int | None = None

    # --- what exists --------------------------------------------------------------------------

    def publish_base(self, model_dir: Path) -> None:
        """Serve the base model from where it lies; hashes it, unless it was hashed before."""
        manifest = build_manifest(
            "base", 0, model_dir, self._chunk_bytes, remembered=self._remembered
        )
        if self._remembered is not None:
            self._remembered.save()
        self._publish(manifest, model_dir)

    def publish_adapter(self, version: int, folder: Path) -> Manifest:
        """Serve a version from its folder; the one before stays, older ones go."""
        parent = self.current_version
        manifest = build_manifest("adapter", version, folder, self._chunk_bytes, parent)
        self._publish(self._with_patch(manifest, folder), folder)
        self.current_version = version
        for kind, old in list(self._manifests):
            if kind == "adapter" and (old <= version - VERSIONS_KEPT or old > version):
                self._forget((kind, old))
        return self._manifests["adapter", version]

    def published(self) -> list[Manifest]:
        """Return the manifests of what is served now."""
        return list(self._manifests.values())

    def bytes_served(self) -> int:
        """Return how many bytes of chunks this daemon has sent itself."""
        return self._server.bytes_served

    def announcements(
        self, agents: Iterable[str]
    ) -> list[tuple[str, PublishedVersion | AnnouncedVersion]]:
        """Return, by agent, the news of the current version, with peers to fetch it from.

        Everybody who is told will serve it soon, so they are one another's peers from the start.
        Those who bring it into the swarm come first.
        """
        assert self.current_version is not None, "publish a version first"
        key: Key = ("adapter", self.current_version)
        agents = [agent for agent in agents if agent in self._endpoints]
        self.holders.choose_seeds(key, agents)
        for agent in agents:
            self.holders.has(key, agent, 0, complete=False)
        seeds = self.holders.seeds[key]
        ordered = sorted(agents, key=lambda agent: agent not in seeds)
        return [(agent, self._published(key, agent)) for agent in ordered]

    def greeting(self, agent: str) -> list[PublishedVersion | AnnouncedVersion | PeerTicket]:
        """What a newcomer is told: the tickets, the base, the versions that may be asked for."""
        keys = sorted(self._manifests, reverse=True)
        return [self.tickets(), *(self._published(key, agent) for key in keys)]

    def manifest(self, kind: str, version: int) -> PublishedVersion | None:
        """Answer GetManifest; None where there is no such version (any more)."""
        key = (kind, 0 if kind == "base" else version)
        found = self._manifests.get(key)
        return None if found is None else PublishedVersion(found, self._is_current(key))

    # --- who has it ---------------------------------------------------------------------------

    def joined(self, member: Member, key: str) -> None:
        """An agent said Hello: from now on it may be a peer; `key` is its CURVE key."""
        self.holders.joined(member.agent_id, member.zone)
        if member.protocol >= (1, 2):
            self._hears.add(member.agent_id)
        if member.chunk_endpoint:
            shown = key if self._daemon.key else ""
            self._endpoints[member.agent_id] = WeightPeer(
                member.agent_id, member.chunk_endpoint, shown
            )

    def left(self, agent: str) -> None:
        self.holders.left(agent)
        self._endpoints.pop(agent, None)
        self._hears.discard(agent)

    def heartbeat(self, agent: str, beat: Heartbeat) -> None:
        held = {(row.kind, row.version): row for row in beat.weights}
        # What it was just told to fetch may not be in its books yet.
        known = {key: row.chunks for key, row in held.items()} | {
            key: 0 for key in self._manifests if self._is_current(key)
        }
        self.holders.told(agent, known)
        for key, row in held.items():
            if key in self._manifests and agent in self._endpoints:
                self.holders.has(key, agent, row.chunks, row.complete)

    def peers(self, asked: WhoHas, by: str) -> Peers:
        """Name who serves a version: agents in the same zone first, this daemon last."""
        key: Key = (asked.kind, asked.version)
        pointed = self.holders.point(key, by, asked.starved)
        return Peers(asked.kind, asked.version, self._named(key, pointed), self._tickets[0])

    def handle(self, message: FromAgent, by: str) -> tuple[Message | None, str]:
        """Return the answer, if any, and the sentence for the event log, if any."""
        match message:
            case GetManifest():
                return self.manifest(message.kind, message.version), ""
            case WhoHas():
                return self.peers(message, by), ""
            case BadPeer():
                banned = self.holders.reported(message.peer_id, by)
                consequence = "; it is named to nobody any more" if banned else ""
                what = f"a bad chunk {message.digest[:12]} to {by}"
                return None, f"{message.peer_id} served {what}{consequence}"
            case NoRoom():
                sizes = f"{message.needed / 1e9:.2f} GB needed, {message.free / 1e9:.2f} GB free"
                what = f"{message.kind} {message.version}"
                return None, f"{by} has no room for {what} and stays out: {sizes}"

    # --- tickets ------------------------------------------------------------------------------

    def tickets(self) -> PeerTicket:
        return PeerTicket(tuple(self._tickets))

    def tick(self, now: float) -> PeerTicket | None:
        """Return new tickets for everybody, when it is time."""
        if self._ticket_at is None:
            self._ticket_at = now
        if now - self._ticket_at < TICKET_S:
            return None
        self._ticket_at = now
        self._renew_ticket()
        return self.tickets()

    def new_tickets(self) -> PeerTicket:
        """End every ticket that is out: one who held it may serve and fetch no more."""
        self._tickets = []
        self._renew_ticket()
        return self.tickets()

    def _renew_ticket(self) -> None:
        self._tickets = [secrets.token_urlsafe(24), *self._tickets[:1]]
        self._server.tickets = set(self._tickets)

    # --- inside -------------------------------------------------------------------------------

    def _published(self, key: Key, agent: str) -> PublishedVersion | AnnouncedVersion:
        current = self._is_current(key)
        peers = self._named(key, self.holders.point(key, agent)) if current else ()
        announced = self._announced.get(key)
        if announced is not None and agent in self._hears:
            return msgspec.structs.replace(announced, current=current, peers=peers)
        return PublishedVersion(self._manifests[key], current, peers)

    def _named(self, key: Key, pointed: Pointed) -> tuple[WeightPeer, ...]:
        named = []
        for agent in (*pointed.near, *pointed.far):
            peer = self._endpoints.get(agent)
            if peer is not None:
                near, complete = agent in pointed.near, self.holders.complete(key, agent)
                named.append(msgspec.structs.replace(peer, near=near, complete=complete))
        return (*named, *([self._daemon] if pointed.daemon else []))

    def _is_current(self, key: Key) -> bool:
        return key[0] == "base" or key[1] == self.current_version

    def _publish(self, manifest: Manifest, folder: Path) -> None:
        self._chunks.add(manifest, folder)
        key: Key = (manifest.kind, manifest.version)
        self._manifests[key] = manifest
        self._announced.pop(key, None)
        encoded = encode_manifest(manifest)
        if self._notes is not None and LONG_MANIFEST < len(encoded) <= MAX_MANIFEST_BYTES:
            announced = AnnouncedVersion(
                manifest.kind, manifest.version, digest_of(encoded), len(encoded), True
            )
            write_file(self._note(key) / "manifest", encoded)
            self._chunks.add(manifest_manifest(announced), self._note(key), MANIFEST)
            self._announced[key] = announced

    def _with_patch(self, manifest: Manifest, folder: Path) -> Manifest:
        """Add a patch against the version before, where that saves enough."""
        key: Key = (manifest.kind, manifest.version - 1)
        parent, parent_folder = self._manifests.get(key), self._chunks.folder(*key)
        if parent is None or parent_folder is None:
            return manifest
        scratch = _patch_folder(folder)
        paths = [file.path for file in manifest.files]
        size = patch.make(parent_folder, folder, paths, scratch / "patch")
        if size is None or not patch.worth(size, manifest, parent):
            shutil.rmtree(scratch, ignore_errors=True)
            return manifest
        chunks = chunk_digests(scratch / "patch", manifest.chunk_bytes)
        described = Patch(manifest_digest(parent), size, chunks)
        manifest = msgspec.structs.replace(manifest, patch=described)
        self._chunks.add(patch_manifest(manifest), scratch, PATCH)
        logger.info("version %d: a patch of %d bytes", manifest.version, size)
        return manifest

    def _forget(self, key: Key) -> None:
        folder = self._chunks.drop(*key)
        if folder is not None:
            shutil.rmtree(_patch_folder(folder), ignore_errors=True)
        self.holders.forget(key)
        del self._manifests[key]
        if self._announced.pop(key, None) is not None:
            shutil.rmtree(self._note(key), ignore_errors=True)

    def _note(self, key: Key) -> Path:
        assert self._notes is not None
        return self._notes / f"{key[0]}-{key[1]}"


def _patch_folder(folder: Path) -> Path:
    return folder.with_name(f".patch-{folder.name}")
