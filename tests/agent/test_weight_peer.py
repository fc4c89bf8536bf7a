"""The agent's part in the swarm, with a real desk and real sockets, without workers."""

import logging
import os

import numpy as np
import pytest
import zmq
import zmq.asyncio

from spotlightd.errors import ExitCode
from spotlightd.weights.manifest import build_manifest
from spotlightd.wire import weights as ww
from spotlightd.wire.codec import LINK
from tests.agent.swarm_scene import CHUNK, adapter, play, same, write_model


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "model", 20)


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
