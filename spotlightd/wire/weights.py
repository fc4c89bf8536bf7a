"""Messages about weights: what is published, who has it, and the channel on which chunks travel.

Manifests, peers and tickets travel on the authenticated link only. `GetChunk`, `Chunk`, `GetNews`
and `News` travel between peers, on a plain channel by default: what arrives there is believed
only where its digest stands in a manifest. The same rules as in `messages.py` apply.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from spotlightd.wire.messages import Count, Digest, Frames, Message
from spotlightd.wire.sampling import Name, PolicyVersion

Kind = Literal["base", "adapter"]
Ticket = Annotated[str, Meta(min_length=16, max_length=128)]
Transport = Literal["plain", "curve"]
MAX_CHUNKS = 65_536
MAX_MANIFEST_BYTES = 4 * 2**20


class WeightFile(Struct, frozen=True, forbid_unknown_fields=True):
    path: Annotated[
        str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*\Z")
    ]
    """Relative, without `..`: it is written below the receiver's own folder."""
    size: Annotated[int, Meta(ge=0, le=2**42)]
    chunks: Annotated[tuple[Digest, ...], Meta(max_length=MAX_CHUNKS)]
    """BLAKE3 of each chunk, in order."""


class Patch(Struct, frozen=True, forbid_unknown_fields=True):
    """A way to make this version's files from another version's, lossless (`weights/patch.py`)."""

    parent: Digest
    """Root hash of the version that it applies to."""
    size: Annotated[int, Meta(ge=1, le=2**42)]
    chunks: Annotated[tuple[Digest, ...], Meta(min_length=1, max_length=MAX_CHUNKS)]


class Manifest(Struct, frozen=True, forbid_unknown_fields=True):
    """An immutable set of files: a base model or one version of the adapter.

    Which tensors there are, with dtype and shape, stands in the header of each safetensors file;
    the chunks' digests cover it. A table of them here would be longer than all digests together.
    """

    kind: Kind
    version: PolicyVersion
    chunk_bytes: Annotated[int, Meta(ge=4096, le=2**28)]
    files: Annotated[tuple[WeightFile, ...], Meta(min_length=1, max_length=4096)]
    parent: PolicyVersion | None = None
    """The version before, of which unchanged chunks need not be fetched again."""
    tensors: Digest | None = None
    """Digest over names, dtypes, shapes and values of all tensors, sorted by name: what must be
    in the model once this is bound. None where no file is safetensors."""
    patch: Patch | None = None


class WeightPeer(Struct, frozen=True, forbid_unknown_fields=True):
    peer_id: Name
    endpoint: Annotated[str, Meta(pattern=r"^tcp://[A-Za-z0-9_.:\[\]-]{3,300}\Z")]
    key: Annotated[str, Meta(max_length=40)] = ""
    """Z85 CURVE key that it serves with, where the transport is `curve`."""
    near: bool = False
    """In the receiver's own zone."""
    complete: bool = False
    """It has every chunk; otherwise its news will say which."""


PeerList = Annotated[tuple[WeightPeer, ...], Meta(max_length=256)]


class PublishedVersion(Message, frozen=True, tag="published_version"):
    """Daemon to agents: this version exists; fetch it. Also the answer to GetManifest."""

    manifest: Manifest
    current: bool
    """Whether it is the newest adapter (bases: always true)."""
    peers: PeerList = ()
    """Whom this receiver may fetch it from; empty: ask with WhoHas."""


class AnnouncedVersion(Message, frozen=True, tag="announced_version"):
    """The same as PublishedVersion where the manifest is long: only its digest comes over this
    link, and the manifest itself, like a chunk, from whoever has it. Since protocol 1.2.
    """

    kind: Kind
    version: PolicyVersion
    digest: Digest
    """BLAKE3 of the manifest's MessagePack, its patch included."""
    size: Annotated[int, Meta(ge=1, le=MAX_MANIFEST_BYTES)]
    """Bytes of that."""
    current: bool
    peers: PeerList = ()


class GetManifest(Message, frozen=True, tag="get_manifest"):
    kind: Kind
    version: PolicyVersion
    """Ignored for a base."""


class WhoHas(Message, frozen=True, tag="who_has"):
    kind: Kind
    version: PolicyVersion
    starved: bool = False
    """No peer that is known has what is missing."""


class Peers(Message, frozen=True, tag="peers"):
    """Who serves a version, with the ticket that they ask for."""

    kind: Kind
    version: PolicyVersion
    peers: PeerList
    ticket: Ticket


class PeerTicket(Message, frozen=True, tag="peer_ticket"):
    """Daemon to agents: serve chunks to whoever shows one of these tickets; show the first."""

    tickets: Annotated[tuple[Ticket, ...], Meta(max_length=16)]


class BadPeer(Message, frozen=True, tag="bad_peer"):
    """A peer served a chunk whose digest was wrong."""

    peer_id: Name
    digest: Digest


class NoRoom(Message, frozen=True, tag="no_room"):
    """The agent's VM has no room for a version; it leaves."""

    kind: Kind
    version: PolicyVersion
    needed: Count
    """Bytes."""
    free: Count
    """Bytes, after everything was evicted that may be."""


# --- between peers ----------------------------------------------------------------------------


class GetChunk(Message, frozen=True, tag="get_chunk"):
    ticket: Ticket
    digest: Digest


class Chunk(Message, frozen=True, tag="chunk"):
    """One frame `chunk`, or none when the server cannot or will not serve it."""

    digest: Digest
    frames: Frames = ()
    refusal: Literal["", "busy", "elsewhere", "unknown", "ticket"] = ""
    """Why there is no frame: too much waits; somebody else has just been sent this chunk; it is
    not here; the ticket is not, or no longer, valid."""


class GetNews(Message, frozen=True, tag="get_news"):
    """Answered once more than `known` chunks of a version are there, which may take a while."""

    ticket: Ticket
    root: Digest
    """Root hash of the version's manifest."""
    known: Count


class News(Message, frozen=True, tag="news"):
    """Which chunks of a version a peer serves now."""

    root: Digest
    have: Annotated[bytes, Meta(max_length=MAX_CHUNKS // 8)]
    """Bit i of the little-endian number: the i-th distinct chunk of the manifest is here."""
    refusal: Literal["", "ticket"] = ""


WeightsMessage = (
    PublishedVersion | AnnouncedVersion | GetManifest | WhoHas | Peers | PeerTicket | BadPeer
    | NoRoom | GetChunk | Chunk | GetNews | News
)  # fmt: skip
