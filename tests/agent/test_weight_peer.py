"""The agent's part in the swarm, with a real desk and real sockets, without workers."""

import asyncio
import logging
import os

import msgspec
import numpy as np
import pytest
import zmq
import zmq.asyncio
from safetensors.numpy import save_file

from agent.weight_peer import Place, WeightPeer
from spotlightd.atomic import digest_of
from spotlightd.errors import ExitCode
from spotlightd.fleet.membership import Member
from spotlightd.fleet.weights_desk import WeightsDesk
from spotlightd.weights.chunks import MANIFEST, ChunkStore
from spotlightd.weights.manifest import build_manifest, encode_manifest, manifest_manifest
from spotlightd.weights.server import ChunkServer
from spotlightd.wire import weights as ww
from spotlightd.wire.codec import LINK
from spotlightd.wire.messages import Welcome

CHUNK = 16 * 1024


def curve_keys():
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


class Scene:
    """A daemon's desk and server, and agents that are connected to it by function calls."""

    def __init__(self, folder, transport="plain", notes=None):
        self.folder = folder
        self.transport = transport
        self.context = zmq.asyncio.Context()
        keys = curve_keys() if transport == "curve" else None
        self.server = ChunkServer(self.context, ChunkStore(), "127.0.0.1", 0, keys)
        endpoint = f"tcp://127.0.0.1:{self.server.port}"
        self.desk = WeightsDesk(
            self.server.store,
            self.server,
            endpoint,
            CHUNK,
            keys[0] if keys else "",
            notes=notes,
        )
        self.server.start()
        self.agents = {}
        self.ready = {}
        self.failures = {}
        self.greetings = {}
        self.sentences = []
        self.news = asyncio.Event()

    async def add(self, name, budget=None, protocol=(1, 2)):
        keys = curve_keys()
        place = Place(self.folder / name, budget, "127.0.0.1", keys)

        def ready(manifest, folder):
            self.ready[name, manifest.kind, manifest.version] = folder
            self.news.set()

        def failed(error):
            self.failures[name] = error
            self.news.set()

        peer = WeightPeer(self.context, place, lambda m: self._sent(name, m), ready, failed)
        self.agents[name] = peer
        peer.start()
        welcome = Welcome(name, 1, 1.0, 0, (), 1, 1.0, "float32", weights_transport=self.transport)
        await peer.welcomed(welcome)
        member = Member(name, name, "agent", 1, 0.0, 0.0)
        member.protocol = protocol
        member.chunk_endpoint = f"tcp://127.0.0.1:{peer.port}"
        self.desk.joined(member, keys[0])
        self.greetings[name] = self.desk.greeting(name)
        for greeting in self.greetings[name]:
            peer.handle(greeting)
        return peer

    def _sent(self, name, message):
        answer, sentence = self.desk.handle(message, name)
        if answer is not None:
            self.agents[name].handle(answer)
        if sentence:
            self.sentences.append(sentence)

    def publish(self, version, folder):
        self.desk.publish_adapter(version, folder)
        for name, published in self.desk.announcements(self.agents):
            self.agents[name].handle(published)

    async def until(self, wanted):
        async with asyncio.timeout(30):
            while not wanted():
                self.news.clear()
                await self.news.wait()

    async def close(self):
        for peer in self.agents.values():
            await peer.close()
        await self.server.close()
        self.context.destroy(linger=0)


def play(tmp_path, script, **options):
    async def run():
        scene = Scene(tmp_path, **options)
        try:
            await script(scene)
        finally:
            await scene.close()

    asyncio.run(run())


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.bin").write_bytes(os.urandom(20 * CHUNK + 5))
    return folder


def adapter(folder, values):
    folder.mkdir(parents=True)
    save_file({"a": values}, folder / "adapter.safetensors")
    return folder


def same(one, other, name):
    return (one / name).read_bytes() == (other / name).read_bytes()


def test_the_second_agent_takes_the_model_from_the_first(tmp_path, model):
    async def script(scene):
        scene.desk.publish_base(model)
        first = await scene.add("one")
        await scene.until(lambda: ("one", "base", 0) in scene.ready)
        sent = scene.server.bytes_served
        (held,) = first.held
        assert held.complete
        scene.desk.holders.has(("base", 0), "one", held.chunks, complete=True)
        second = await scene.add("two")
        await scene.until(lambda: ("two", "base", 0) in scene.ready)
        assert set(second.fetched_from) == {"one"}
        assert scene.server.bytes_served == sent
        assert same(model, scene.ready["two", "base", 0], "model.bin")

    play(tmp_path, script)


def test_a_vm_without_room_says_so_and_stays_out(tmp_path, model):
    async def script(scene):
        scene.desk.publish_base(model)
        await scene.add("small", budget=5 * CHUNK)
        await scene.until(lambda: "small" in scene.failures)
        error = scene.failures["small"]
        assert error.exit_code == ExitCode.INPUT, "its unit does not start it again"
        assert "needs 0.00 GB in" in str(error) and "--weights-budget" in str(error)
        (sentence,) = scene.sentences
        assert sentence.startswith("small has no room for base 0 and stays out")
        assert not (tmp_path / "small/models").exists(), "nothing was fetched"

    play(tmp_path, script)


def test_models_of_other_runs_make_room(tmp_path, model):
    async def script(scene):
        old = tmp_path / "tight/models/0123456789abcdef"
        old.mkdir(parents=True)
        (old / "model.bin").write_bytes(os.urandom(20 * CHUNK))
        scene.desk.publish_base(model)
        await scene.add("tight", budget=30 * CHUNK)
        await scene.until(lambda: ("tight", "base", 0) in scene.ready)
        assert not old.exists()

    play(tmp_path, script)


def test_with_curve_chunks_travel_encrypted_and_a_plain_peer_gets_nothing(tmp_path, model):
    async def script(scene):
        scene.desk.publish_base(model)
        first = await scene.add("one")
        await scene.until(lambda: ("one", "base", 0) in scene.ready)
        scene.desk.holders.has(("base", 0), "one", 21, complete=True)
        second = await scene.add("two")
        await scene.until(lambda: ("two", "base", 0) in scene.ready)
        assert set(second.fetched_from) == {"one"}
        plain = scene.context.socket(zmq.DEALER)
        plain.connect(f"tcp://127.0.0.1:{first.port}")
        manifest = scene.desk.manifest("base", 0).manifest
        ticket = scene.desk.tickets().tickets[0]
        await plain.send_multipart(LINK.encode(ww.GetChunk(ticket, manifest.files[0].chunks[0])))
        assert not await plain.poll(300)

    play(tmp_path, script, transport="curve")


def test_where_few_values_changed_the_patch_is_fetched_and_nothing_else(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    rng = np.random.default_rng(0)
    values = rng.standard_normal(200_000).astype(np.float16)
    changed = values.copy()
    changed[rng.choice(len(values), 500, replace=False)] += np.float16(0.5)
    one, two = adapter(tmp_path / "p/1", values), adapter(tmp_path / "p/2", changed)

    async def script(scene):
        await scene.add("vm")
        scene.publish(1, one)
        await scene.until(lambda: ("vm", "adapter", 1) in scene.ready)
        sent = scene.server.bytes_served
        scene.publish(2, two)
        await scene.until(lambda: ("vm", "adapter", 2) in scene.ready)
        assert scene.server.bytes_served - sent < 5_000, "of 400 kB"
        assert same(two, scene.ready["vm", "adapter", 2], "adapter.safetensors")
        assert "is made from a patch" in caplog.text

    play(tmp_path, script)


def test_chunks_that_did_not_change_are_not_fetched_again(tmp_path):
    rng = np.random.default_rng(0)
    values = rng.standard_normal(100_000).astype(np.float32)
    changed = values.copy()
    changed[:20_000] = rng.standard_normal(20_000)
    one, two = adapter(tmp_path / "p/1", values), adapter(tmp_path / "p/2", changed)

    async def script(scene):
        peer = await scene.add("vm")
        scene.publish(1, one)
        await scene.until(lambda: ("vm", "adapter", 1) in scene.ready)
        sent = scene.server.bytes_served
        scene.publish(2, two)
        await scene.until(lambda: ("vm", "adapter", 2) in scene.ready)
        assert 80_000 <= scene.server.bytes_served - sent <= 80_000 + 2 * CHUNK
        assert same(two, scene.ready["vm", "adapter", 2], "adapter.safetensors")
        assert peer.holds == (1, 2)

    play(tmp_path, script)


def test_a_version_that_is_published_anew_ends_the_fetch_of_its_older_content(tmp_path):
    """A killed daemon repeats the update; what it published before, nobody has any more."""
    values = np.arange(50_000, dtype=np.float32)
    lost = build_manifest("adapter", 1, adapter(tmp_path / "p/lost", values), CHUNK)

    async def script(scene):
        peer = await scene.add("vm")
        peer.handle(ww.PublishedVersion(lost, True, ()))
        (older,) = peer._fetches.values()
        again = adapter(tmp_path / "p/again", values + 1)
        scene.publish(1, again)
        await scene.until(lambda: ("vm", "adapter", 1) in scene.ready)
        assert older.cancelled() and not scene.failures
        assert same(again, scene.ready["vm", "adapter", 1], "adapter.safetensors")
        peer.handle(ww.PublishedVersion(lost, True, ()))
        (last,) = peer._fetches.values()
        peer.handle(ww.PublishedVersion(lost, True, ()))
        assert tuple(peer._fetches.values()) == (last,) and not last.cancelling()

    play(tmp_path, script)


def test_what_came_of_a_version_that_nobody_serves_any_more_is_removed(tmp_path):
    """A VM that never catches up would fill its memory with parts of old versions otherwise."""
    values = np.arange(50_000, dtype=np.float32)
    old = build_manifest("adapter", 1, adapter(tmp_path / "p/1", values), CHUNK)

    async def script(scene):
        peer = await scene.add("vm")
        part = tmp_path / "vm/weights/1/adapter.safetensors.part"
        part.parent.mkdir(parents=True)
        part.write_bytes(bytes(CHUNK))
        peer.handle(ww.PublishedVersion(old, True, ()))
        (older,) = peer._fetches.values()
        scene.publish(3, adapter(tmp_path / "p/3", values + 1))
        await scene.until(lambda: ("vm", "adapter", 3) in scene.ready)
        assert older.cancelled() and not scene.failures
        assert not part.parent.exists() and scene.ready["vm", "adapter", 3].exists()

    play(tmp_path, script)


def test_a_new_ticket_shuts_out_the_oldest_and_transfers_go_on(tmp_path, model):
    async def script(scene):
        scene.desk.publish_base(model)
        old = scene.desk.tickets().tickets[0]
        assert scene.desk.tick(0.0) is None
        assert scene.desk.tick(301.0) is not None and old in scene.server.tickets
        assert scene.desk.tick(602.0) is not None and old not in scene.server.tickets
        peer = await scene.add("vm")
        # It has missed the renewals: the daemon is asked for peers, and names its newest ticket.
        peer.handle(ww.PeerTicket((old,)))
        scene.publish(1, adapter(tmp_path / "p/1", np.ones(9, np.float32)))
        await scene.until(lambda: ("vm", "adapter", 1) in scene.ready)

    play(tmp_path, script)


def test_a_long_manifest_is_announced_by_its_digest_and_served_by_peers(tmp_path):
    """An agent of an older protocol gets it whole, and both fetch the same files."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.bin").write_bytes(os.urandom(60 * CHUNK + 5))

    async def script(scene):
        scene.desk.publish_base(folder)
        first = await scene.add("one")
        await scene.until(lambda: ("one", "base", 0) in scene.ready)
        scene.desk.holders.has(("base", 0), "one", 61, complete=True)
        # Whoever asks the daemon from now on gets nothing: the manifest comes from the first, too.
        scene.server.tickets = set()
        await scene.add("two")
        await scene.until(lambda: ("two", "base", 0) in scene.ready)
        old = await scene.add("old", protocol=(1, 1))
        await scene.until(lambda: ("old", "base", 0) in scene.ready)
        for name in ("one", "two", "old"):
            assert same(folder, scene.ready[name, "base", 0], "model.bin")
        kinds = {n: type(next(reversed(g))) for n, g in scene.greetings.items()}
        assert kinds == {
            "one": ww.AnnouncedVersion,
            "two": ww.AnnouncedVersion,
            "old": ww.PublishedVersion,
        }
        announced = scene.greetings["two"][-1]
        assert len(LINK.encode(announced)[0]) < 500 < announced.size
        assert old.held == first.held, "what belongs to a version is not counted as one"

    play(tmp_path, script, notes=tmp_path / "notes")


def test_a_manifest_that_an_agent_has_is_not_fetched_again(tmp_path):
    """Restarted, it goes on with its files; and a folder made for room keeps what is served."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.bin").write_bytes(os.urandom(60 * CHUNK + 5))

    async def script(scene):
        scene.desk.publish_base(folder)
        first = await scene.add("one")
        await scene.until(lambda: ("one", "base", 0) in scene.ready)
        await first.close()
        del scene.agents["one"]
        scene.ready.clear()
        sent = scene.server.bytes_served
        again = await scene.add("one")
        await scene.until(lambda: ("one", "base", 0) in scene.ready)
        assert scene.server.bytes_served == sent and not again.fetched_from
        again.handle(scene.greetings["one"][-1])
        await asyncio.gather(*again._fetches.values())
        manifest = again._store.view(scene.greetings["one"][-1].digest)
        assert manifest is not None

    play(tmp_path, script, notes=tmp_path / "notes")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"nonsense" * 500, "no manifest"),
        (msgspec.msgpack.encode({"kind": "base"}), "no manifest"),
        (
            encode_manifest(ww.Manifest("base", 1, 4096, (ww.WeightFile("f", 0, ()),))),
            "is of base 1",
        ),
    ],
)
def test_what_is_no_manifest_of_the_version_is_a_failure(tmp_path, data, sentence):
    """Its digest came over the authenticated link, so nobody else will have a better one."""
    folder = tmp_path / "note"
    folder.mkdir()
    (folder / "manifest").write_bytes(data)
    announced = ww.AnnouncedVersion("base", 0, digest_of(data), len(data), True)

    async def script(scene):
        peer = await scene.add("vm")
        scene.server.store.add(manifest_manifest(announced), folder, MANIFEST)
        peers = (ww.WeightPeer("daemon", f"tcp://127.0.0.1:{scene.server.port}", complete=True),)
        peer.handle(msgspec.structs.replace(announced, peers=peers))
        await scene.until(lambda: "vm" in scene.failures)
        assert sentence in str(scene.failures["vm"])
        assert not scene.ready and not peer.held

    play(tmp_path, script)


def test_room_is_never_made_of_what_another_fetch_writes(tmp_path):
    """An adapter finds no room while the base model of an earlier start is being looked through."""

    async def script(scene):
        peer = await scene.add("vm")
        models = tmp_path / "vm" / "models"
        root = "a" * 64
        for name in (root[:16], f".manifest-{root[:16]}", "b" * 16):
            (models / name).mkdir(parents=True)
        peer.handle(ww.AnnouncedVersion("base", 0, root, 9000, True))
        peer._evict(keep=tmp_path / "vm" / "weights" / "1")
        assert {path.name for path in models.glob("*")} == {root[:16], f".manifest-{root[:16]}"}

    play(tmp_path, script)
