"""Which weights exist, who serves them, and with which ticket."""

import secrets
from pathlib import Path

from spotlightd.fleet.membership import Membership
from spotlightd.weights.chunks import ChunkStore
from spotlightd.weights.manifest import build_manifest
from spotlightd.weights.server import ChunkServer
from spotlightd.wire.messages import (
    Manifest,
    Peers,
    PeerTicket,
    PublishedVersion,
    WeightPeer,
    WhoHas,
)

DAEMON = "daemon"
VERSIONS_KEPT = 2
MAX_PEERS = 64


class WeightsDesk:
    """The daemon's side of the swarm: it knows the holders, and carries bytes only as one of them.

    Args:
        endpoint: where this daemon's chunk server is reached.
    """

    def __init__(
        self, chunks: ChunkStore, server: ChunkServer, endpoint: str, chunk_bytes: int
    ) -> None:
        self._chunks = chunks
        self._server = server
        self._endpoint = endpoint
        self._chunk_bytes = chunk_bytes
        self._manifests: dict[tuple[str, int], Manifest] = {}
        self._tickets: list[str] = []
        self._renew_ticket()
        self.current_version: int | None = None

    def publish_base(self, model_dir: Path) -> None:
        self._publish(build_manifest("base", 0, model_dir, self._chunk_bytes), model_dir)

    def publish_adapter(self, version: int, folder: Path) -> PublishedVersion:
        """Serve a version from its folder; the one before stays, older ones go."""
        self._publish(build_manifest("adapter", version, folder, self._chunk_bytes), folder)
        self.current_version = version
        for kind, old in list(self._manifests):
            if kind == "adapter" and old <= version - VERSIONS_KEPT:
                self._chunks.drop("adapter", old)
                del self._manifests[kind, old]
        self._renew_ticket()
        return PublishedVersion(self._manifests["adapter", version], current=True)

    def greeting(self) -> list[PublishedVersion | PeerTicket]:
        """What a newcomer is told: the base, the versions that may be asked for, the tickets."""
        published = [
            PublishedVersion(manifest, kind == "base" or version == self.current_version)
            for (kind, version), manifest in sorted(self._manifests.items(), reverse=True)
        ]
        return [self.tickets(), *published]

    def tickets(self) -> PeerTicket:
        return PeerTicket(tuple(self._tickets))

    def manifest(self, kind: str, version: int) -> PublishedVersion | None:
        found = self._manifests.get((kind, 0 if kind == "base" else version))
        if found is None:
            return None
        return PublishedVersion(found, kind == "base" or version == self.current_version)

    def peers(self, asked: WhoHas, by: str, fleet: Membership) -> Peers:
        """Name who serves a version: agents first, this daemon last."""
        holders = [
            WeightPeer(member.agent_id, member.chunk_endpoint)
            for member in fleet.members.values()
            if member.agent_id != by
            and member.state == "live"
            and member.chunk_endpoint
            and (asked.kind, asked.version) in member.holds
        ]
        everybody = (*holders[: MAX_PEERS - 1], WeightPeer(DAEMON, self._endpoint))
        return Peers(asked.kind, asked.version, everybody, self._tickets[0])

    def _renew_ticket(self) -> None:
        """A ticket lives as long as the versions that it was given out for."""
        self._tickets = [secrets.token_urlsafe(24), *self._tickets[: VERSIONS_KEPT - 1]]
        self._server.tickets = set(self._tickets)

    def _publish(self, manifest: Manifest, folder: Path) -> None:
        self._chunks.add(manifest, folder)
        self._manifests[manifest.kind, manifest.version] = manifest
