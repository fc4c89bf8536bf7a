"""Manifests that are announced by their digest, fetched and served like chunks."""

import asyncio

import msgspec
import pytest

from spotlightd.atomic import digest_of
from spotlightd.weights.chunks import MANIFEST
from spotlightd.weights.manifest import encode_manifest, manifest_manifest
from spotlightd.wire import weights as ww
from spotlightd.wire.codec import LINK
from tests.agent.swarm_scene import play, same, write_model


@pytest.fixture
def model(tmp_path):
    """A model whose manifest is long: it has 61 chunks."""
    return write_model(tmp_path / "model", 60)


def test_a_long_manifest_is_announced_by_its_digest_and_served_by_peers(tmp_path, model):
    """An agent of an older protocol gets it whole, and both fetch the same files."""

    async def script(scene):
        scene.desk.publish_base(model)
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
            assert same(model, scene.ready[name, "base", 0], "model.bin")
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


def test_a_manifest_that_an_agent_has_is_not_fetched_again(tmp_path, model):
    """Restarted, it goes on with its files; and a folder made for room keeps what is served."""

    async def script(scene):
        scene.desk.publish_base(model)
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
