"""A daemon's desk and server, and agents connected to it by function calls: sockets are real."""

import asyncio
import os

import zmq
import zmq.asyncio
from safetensors.numpy import save_file

from agent.weight_peer import Place, WeightPeer
from spotlightd.fleet.membership import Member
from spotlightd.fleet.weights_desk import WeightsDesk
from spotlightd.weights.chunks import ChunkStore
from spotlightd.weights.server import ChunkServer
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


def write_model(folder, chunks):
    """Write a model of so many whole chunks and a short one."""
    folder.mkdir()
    (folder / "model.bin").write_bytes(os.urandom(chunks * CHUNK + 5))
    return folder


def adapter(folder, values):
    folder.mkdir(parents=True)
    save_file({"a": values}, folder / "adapter.safetensors")
    return folder


def same(one, other, name):
    return (one / name).read_bytes() == (other / name).read_bytes()
