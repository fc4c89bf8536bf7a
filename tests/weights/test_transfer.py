"""Chunks over real sockets: several peers, bad ones, dying ones, and transfers taken up again."""

import asyncio
import os

import pytest
import zmq.asyncio

from spotlightd.errors import InputError, TryAgainError
from spotlightd.weights.chunks import ChunkStore, Download
from spotlightd.weights.client import Swarm, fetch
from spotlightd.weights.manifest import build_manifest, manifest_digest
from spotlightd.weights.server import ChunkServer
from spotlightd.wire.weights import Manifest, WeightFile, WeightPeer

CHUNK = 4096
TICKET = "t" * 24


@pytest.fixture
def published(tmp_path):
    """A folder of two files, its manifest and a store that serves it."""
    root = tmp_path / "published"
    (root / "sub").mkdir(parents=True)
    (root / "model.safetensors").write_bytes(os.urandom(10 * CHUNK + 17))
    (root / "sub/config.json").write_text("{}")
    (root / ".hidden").write_text("no")
    manifest = build_manifest("base", 0, root, CHUNK)
    store = ChunkStore()
    store.add(manifest, root)
    return root, manifest, store


class Flipping(ChunkStore):
    """Serves every chunk with one bit wrong."""

    def view(self, digest):
        data = super().view(digest)
        return None if data is None else memoryview(bytes([data[0] ^ 1]) + data[1:])


class Oversized(ChunkStore):
    """Serves more than a chunk may have: ZeroMQ disconnects such a peer for good."""

    def view(self, digest):
        data = super().view(digest)
        return None if data is None else memoryview(bytes(data) + bytes(8 * CHUNK))


class Dying(ChunkStore):
    """Its server answers two requests and then falls silent, as a killed host does."""


class SilentAfterTwo(ChunkServer):
    answered = 0

    def _asked(self, route, message, now):
        self.answered += 1
        if self.answered <= 2:
            super()._asked(route, message, now)


def run_transfer(stores, manifest, folder, ticket=TICKET, timeout_s=1.0):
    async def run():
        context = zmq.asyncio.Context()
        servers = [
            (SilentAfterTwo if isinstance(store, Dying) else ChunkServer)(
                context, store, "127.0.0.1", 0
            )
            for store in stores
        ]
        for server in servers:
            server.tickets = {TICKET}
            server.start()
        peers = [
            WeightPeer(f"peer{i}", f"tcp://127.0.0.1:{server.port}")
            for i, server in enumerate(servers)
        ]
        bad = []
        try:
            counts = await fetch(
                context,
                Download(manifest, folder),
                peers,
                Swarm(lambda: ticket, lambda peer, digest: bad.append(peer), timeout_s=timeout_s),
            )
            return counts, bad
        finally:
            for server in servers:
                await server.close()
            context.term()

    return asyncio.run(run())


def same(root, folder, manifest):
    return all(
        (root / file.path).read_bytes() == (folder / file.path).read_bytes()
        for file in manifest.files
    )


def test_files_arrive_from_two_peers(published, tmp_path):
    root, manifest, store = published
    counts, bad = run_transfer([store, store], manifest, tmp_path / "to")
    assert same(root, tmp_path / "to", manifest)
    assert not bad
    assert all(count > 2 for count in counts.values()) and sum(counts.values()) == 12
    assert not list((tmp_path / "to").rglob(".partial-*"))


def test_a_peer_that_flips_a_bit_is_named_and_nothing_of_it_is_kept(published, tmp_path):
    root, manifest, store = published
    flipping = Flipping()
    flipping.add(manifest, root)
    counts, bad = run_transfer([flipping, store], manifest, tmp_path / "to")
    assert bad == ["peer0"]
    assert counts == {"peer1": 12}
    assert same(root, tmp_path / "to", manifest)


def test_a_peer_that_dies_costs_only_what_it_owed(published, tmp_path):
    root, manifest, store = published
    dying = Dying()
    dying.add(manifest, root)
    counts, _ = run_transfer([dying, store], manifest, tmp_path / "to", timeout_s=2.0)
    assert same(root, tmp_path / "to", manifest)
    assert counts["peer0"] == 2


def test_a_peer_that_breaks_the_protocol_is_not_waited_for(published, tmp_path):
    root, manifest, store = published
    oversized = Oversized()
    oversized.add(manifest, root)
    counts, _ = run_transfer([oversized, store], manifest, tmp_path / "to", timeout_s=0.3)
    assert counts == {"peer1": 12}
    assert same(root, tmp_path / "to", manifest)


def test_a_transfer_goes_on_where_it_ended(published, tmp_path):
    root, manifest, store = published
    dying = Dying()
    dying.add(manifest, root)
    with pytest.raises(TryAgainError, match="10 chunks are missing, the others are kept"):
        run_transfer([dying], manifest, tmp_path / "to", timeout_s=0.3)
    assert len(Download(manifest, tmp_path / "to").missing) == 10
    counts, _ = run_transfer([store], manifest, tmp_path / "to")
    assert counts == {"peer0": 10}
    assert same(root, tmp_path / "to", manifest)


def test_without_a_ticket_nothing_is_served(published, tmp_path):
    _, manifest, store = published
    with pytest.raises(TryAgainError, match="no peer is left"):
        run_transfer([store], manifest, tmp_path / "to", ticket="w" * 24)


def test_a_download_never_leaves_its_folder(tmp_path):
    manifest = Manifest("base", 0, CHUNK, (WeightFile("a/b", 1, ("0" * 64,)),))
    (tmp_path / "to").mkdir()
    (tmp_path / "to/a").symlink_to(tmp_path)
    with pytest.raises(InputError, match="outside its folder"):
        Download(manifest, tmp_path / "to")


def test_links_out_of_a_folder_are_not_published(tmp_path):
    (tmp_path / "secret").write_text("x")
    (tmp_path / "root").mkdir()
    (tmp_path / "root/link").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match="leads out of"):
        build_manifest("base", 0, tmp_path / "root", CHUNK)


def test_equal_content_has_an_equal_root_hash(published):
    root, manifest, _ = published
    assert manifest_digest(build_manifest("base", 0, root, CHUNK)) == manifest_digest(manifest)
    (root / "sub/config.json").write_text("{ }")
    assert manifest_digest(build_manifest("base", 0, root, CHUNK)) != manifest_digest(manifest)


def test_a_dropped_version_is_served_no_more(published):
    root, manifest, store = published
    digest = manifest.files[0].chunks[0]
    assert store.view(digest) is not None
    assert store.drop("base", 0) == root
    assert store.view(digest) is None
