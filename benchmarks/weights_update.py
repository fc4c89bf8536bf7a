"""From a published adapter to its use: real agents with real workers, on this machine.

    python benchmarks/weights_update.py [--json FILE] [--check] [--updates 30] [--agents 4]

A daemon's link, desk and chunk server, and `--agents` processes of `spotlight-agent`, each with one
worker that holds the embedded model. An update is timed from the call that publishes it until the
last agent has asked for work with it, which it does once its worker has bound it. Hashing, the
announcement, the transfer between agents, the check of what was bound and the switch are all in.

Target (--check): 300 ms at the 95th percentile.
"""

import asyncio
import os
import secrets
import statistics
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import zmq
from _report import finish, make_parser

from spotlightd.fleet.auth import AllowList, KeyPair, Peer
from spotlightd.fleet.link import Link
from spotlightd.fleet.membership import Member
from spotlightd.fleet.weights_desk import WeightsDesk
from spotlightd.models import EMBEDDED_DIR
from spotlightd.weights.chunks import ChunkStore
from spotlightd.weights.serve import AGAIN_S
from spotlightd.weights.server import ChunkServer
from spotlightd.wire import messages as m
from spotlightd.wire import weights as ww
from spotlightd.wire.token import Token, make_token

RANK, ALPHA = 16, 32.0
TARGET_MS = 300.0
JOIN_S = 300.0
COMMAND = [sys.executable, "-c", "from agent.cli import main; main()"]


class Daemon:
    """The parts of the daemon that an update passes through, and what agents said of it."""

    def __init__(self) -> None:
        public, secret = (key.decode() for key in zmq.curve_keypair())
        self.allowed = AllowList()
        self.link = Link(KeyPair(public, secret), self.allowed)
        self.link.bind("127.0.0.1", 0, 0)
        self.server = ChunkServer(self.link.context, ChunkStore(), "127.0.0.1", 0, again_s=AGAIN_S)
        endpoint = f"tcp://127.0.0.1:{self.server.port}"
        self.desk = WeightsDesk(self.server.store, self.server, endpoint, 4 * 2**20, rng=Random(1))
        self.desk.publish_base(EMBEDDED_DIR)
        token = Token(f"127.0.0.1:{self.link.enrol_port}", public, "tok", secrets.token_urlsafe(12))
        self.token = make_token(token)
        self.usable: dict[int, dict[str, float]] = {}
        """Version -> agent -> when it first asked for work with it."""
        self.news = asyncio.Event()
        self._sending: set[asyncio.Task[bool]] = set()

    def start(self) -> None:
        self.server.start()
        self.link.start(self._handle, self._enrol)

    def publish(self, version: int, folder: Path) -> None:
        self.desk.publish_adapter(version, folder)
        keys = {peer.agent_id: key for key, peer in self.allowed.peers.items()}
        for agent, published in self.desk.announcements(keys):
            self._send(keys[agent], published)

    async def close(self) -> None:
        await asyncio.gather(*self._sending)
        await self.server.close()
        await self.link.close()

    def _send(self, key: str, message: m.Message) -> None:
        task = asyncio.ensure_future(self.link.send(key, message))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _enrol(self, key: str, message: m.Enrol) -> m.Enrolled:
        agent = f"agent-{len(self.allowed.peers)}"
        self.allowed.peers[key] = Peer(agent, message.name, "agent")
        return m.Enrolled(agent, self.link.link_port)

    def _handle(self, key: str, message: m.Message, frames: list) -> None:  # type: ignore[type-arg]
        agent = self.allowed.peers[key].agent_id
        match message:
            case m.Hello():
                member = Member(agent, message.name, "agent", message.workers, 0.0, 0.0)
                member.chunk_endpoint = f"tcp://127.0.0.1:{message.chunk_port}"
                self.desk.joined(member, key)
                rewards = ("ocr",)
                self._send(key, m.Welcome(agent, 1, 1.0, 0, rewards, RANK, ALPHA, "float32"))
                for greeting in self.desk.greeting(agent):
                    self._send(key, greeting)
            case m.Heartbeat():
                self.desk.heartbeat(agent, message)
                self._send(key, m.HeartbeatReply(1))
            case ww.GetManifest() | ww.WhoHas() | ww.BadPeer() | ww.NoRoom():
                answer, problem = self.desk.handle(message, agent)
                if problem:
                    raise AssertionError(problem)
                if answer is not None:
                    self._send(key, answer)
            case m.Give():
                for version in message.versions:
                    self.usable.setdefault(version, {}).setdefault(agent, time.monotonic())
                self.news.set()
            case _:
                pass

    async def until_usable(self, version: int, agents: int, timeout_s: float) -> float:
        """Return when the last of so many agents could use a version."""
        async with asyncio.timeout(timeout_s):
            while len(self.usable.get(version, {})) < agents:
                self.news.clear()
                await self.news.wait()
        return max(self.usable[version].values())


def write_adapters(folder: Path, count: int) -> int:
    """Write `count` versions of the embedded model's adapter; return the bytes of one."""
    import torch

    from spotlightd.dit.lora import adapter_bytes, adapter_parameters, attach_lora
    from spotlightd.dit.models import load_model

    model = load_model(EMBEDDED_DIR)
    attach_lora(model, RANK, ALPHA)
    size = 0
    for version in range(count):
        with torch.no_grad():
            for parameter in adapter_parameters(model).values():
                parameter.add_(torch.randn_like(parameter), alpha=1e-3)
        data = adapter_bytes(model)
        (folder / str(version)).mkdir(parents=True)
        (folder / str(version) / "adapter.safetensors").write_bytes(data)
        size = len(data)
    return size


async def measure(agents: int, updates: int, folder: Path) -> dict[str, float]:
    size = write_adapters(folder / "weights", updates + 1)
    daemon = Daemon()
    daemon.start()
    environ = {**os.environ, "SPOTLIGHT_TOKEN": daemon.token, "OMP_NUM_THREADS": "1"}
    processes = []
    with (folder / "agents.log").open("wb") as log:
        for number in range(agents):
            state = ["--state-dir", str(folder / f"agent{number}")]
            local = ["--chunk-bind=127.0.0.1", "--preempt-provider=none", "--connect-timeout=120"]
            processes.append(
                await asyncio.create_subprocess_exec(
                    *COMMAND, "join", *state, *local, stdout=log, stderr=log, env=environ
                )
            )
    try:
        daemon.publish(0, folder / "weights/0")
        await daemon.until_usable(0, agents, JOIN_S)
        times, copies = [], []
        for version in range(1, updates + 1):
            began, served = time.monotonic(), daemon.server.bytes_served
            daemon.publish(version, folder / f"weights/{version}")
            times.append(1000 * (await daemon.until_usable(version, agents, 60.0) - began))
            copies.append((daemon.server.bytes_served - served) / size)
    except TimeoutError:
        print((folder / "agents.log").read_text()[-3000:], file=sys.stderr)
        raise
    finally:
        for process in processes:
            process.terminate()
        await asyncio.gather(*(process.wait() for process in processes))
        await daemon.close()
    ordered = sorted(times)
    return {
        "agents": float(agents),
        "updates": float(updates),
        "adapter_mb": size / 1e6,
        "median_ms": statistics.median(times),
        "p95_ms": ordered[min(int(0.95 * len(ordered)), len(ordered) - 1)],
        "max_ms": ordered[-1],
        "daemon_copies_mean": statistics.mean(copies),
    }


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--updates", type=int, default=30)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spotlight-") as folder:
        figures = asyncio.run(measure(args.agents, args.updates, Path(folder)))
    title = f"an update to {args.agents} agents, published to usable"
    return finish(title, figures, args, at_most={"p95_ms": TARGET_MS})


if __name__ == "__main__":
    sys.exit(main())
