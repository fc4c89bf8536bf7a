"""A daemon that does what a test tells it, behind the real sockets, in front of real agents."""

import asyncio
import itertools
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
import zmq

from spotlightd.fleet.auth import AllowList, KeyPair, Peer
from spotlightd.fleet.link import Link
from spotlightd.fleet.membership import Member, Membership
from spotlightd.fleet.weights_desk import WeightsDesk
from spotlightd.models import EMBEDDED_DIR
from spotlightd.weights.chunks import ChunkStore
from spotlightd.weights.server import ChunkServer
from spotlightd.wire import messages as m
from spotlightd.wire.sampling import Request, SamplerSettings
from spotlightd.wire.token import Token, make_token, proof_under, secret_key

RANK, ALPHA = 4, 8.0
COMMAND = [sys.executable, "-c", "from agent.cli import main; main()"]
Found = TypeVar("Found")


class AgentProcess:
    """A `spotlight-agent` and what it printed."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def child(self, module: str) -> psutil.Process:
        (found,) = [child for child in self.children() if module in child.cmdline()]
        return found

    async def exit_code(self, timeout_s: float = 30.0) -> int:
        async with asyncio.timeout(timeout_s):
            return await self.process.wait()


class ScriptedDaemon:
    """Welcomes agents and serves weights by itself; grants and acknowledges as told.

    `heard` is every message of the link with copies of its frames, in order of arrival.
    """

    def __init__(self, tmp_path: Path) -> None:
        self.heard: list[tuple[m.Message, list[bytes]]] = []
        self.acks = True
        """Whether reports are acknowledged."""
        self.epoch = 1
        self.refusal: m.Refused | None = None
        """The answer to enrolment, in place of an acceptance."""
        self.refused_keys: list[str] = []
        self.welcomes = True
        self.secret = secrets.token_urlsafe(12)
        self._tmp_path = tmp_path
        public, secret = (key.decode() for key in zmq.curve_keypair())
        self.allowed = AllowList()
        self.link = Link(KeyPair(public, secret), self.allowed)
        self.link.bind("127.0.0.1", 0, 0)
        chunks = ChunkStore()
        server = ChunkServer(self.link.context, chunks, "127.0.0.1", 0)
        self._server = server
        self.desk = WeightsDesk(chunks, server, f"tcp://127.0.0.1:{server.port}", 2**20)
        self.desk.publish_base(EMBEDDED_DIR)
        self.fleet = Membership(10.0, 20.0, 60.0)
        self.token = make_token(
            Token(f"127.0.0.1:{self.link.enrol_port}", public, "tok", self.secret)
        )
        self.key = ""
        """Of the agent that was heard last."""
        self._fences = itertools.count(1)
        self._names = itertools.count()
        self._news = asyncio.Event()
        self._sending: set[asyncio.Task[bool]] = set()
        self._agents: list[AgentProcess] = []

    # --- for tests ----------------------------------------------------------------------------

    async def start_agent(self, *arguments: str, command: str = "join") -> AgentProcess:
        """Start an agent that joins with this daemon's token, in a folder of its own."""
        name = f"agent{next(self._names)}"
        log = self._tmp_path / f"{name}.log"
        where = [] if "--state-dir" in arguments else ["--state-dir", str(self._tmp_path / name)]
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *COMMAND,
                command,
                *where,
                "--chunk-bind=127.0.0.1",
                *arguments,
                stdout=file,
                stderr=file,
                env={**os.environ, "SPOTLIGHT_TOKEN": self.token},
            )
        agent = AgentProcess(process, log)
        self._agents.append(agent)
        return agent

    async def until(
        self, wanted: Callable[[], Found], agent: AgentProcess, timeout_s: float = 60.0
    ) -> Found:
        """Wait for what a test looks for in `heard`; fail at once when the agent is gone."""
        gone = asyncio.ensure_future(agent.process.wait())
        try:
            async with asyncio.timeout(timeout_s):
                while not (found := wanted()):
                    assert not gone.done(), f"the agent left with {gone.result()}:\n{agent.log}"
                    self._news.clear()
                    news = asyncio.ensure_future(self._news.wait())
                    await asyncio.wait({news, gone}, return_when=asyncio.FIRST_COMPLETED)
                    news.cancel()
        except TimeoutError:
            kinds = [type(message).__name__ for message, _ in self.heard]
            pytest.fail(f"not heard within {timeout_s:g} s, only {kinds}; its log:\n{agent.log}")
        finally:
            gone.cancel()
        return found

    async def farewell(self, agent: AgentProcess, timeout_s: float = 10.0) -> int:
        """Wait for an agent's end and for its Goodbye, its last word; return its exit code."""
        code = await agent.exit_code()
        async with asyncio.timeout(timeout_s):
            while not isinstance(self.heard[-1][0], m.Goodbye):
                self._news.clear()
                await self._news.wait()
        return code

    def all(self, kind: type[Found], after: int = 0) -> list[Found]:
        return [message for message, _ in self.heard[after:] if isinstance(message, kind)]

    def frames(self, message: m.Message) -> dict[str, bytes]:
        """Return a heard message's frames by name."""
        (frames,) = [frames for heard, frames in self.heard if heard is message]
        return dict(zip((spec.name for spec in message.frames), frames, strict=True))

    def send(self, message: m.Message, frames: Sequence[bytes] = ()) -> None:
        task = asyncio.ensure_future(self.link.send(self.key, message, frames))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def grant(self, *requests: Request, resume: tuple[int, bytes] | None = None) -> list[m.Lease]:
        """Lease requests, all resumed from `resume` (step, state) where it is given."""
        step = resume[0] if resume else 0
        leases = [m.Lease(request, next(self._fences), 60.0, step) for request in requests]
        frames = [resume[1]] * len(leases) if resume else []
        specs = tuple(m.FrameSpec("trajectory", len(frame)) for frame in frames)
        self.send(m.Grant(tuple(leases), specs), frames)
        return leases

    def publish(self, version: int, folder: Path) -> None:
        published = self.desk.publish_adapter(version, folder)
        if self.key:
            self.send(self.desk.tickets())
            self.send(published)

    # --- what it does by itself ---------------------------------------------------------------

    def start(self) -> None:
        self._server.start()
        self.link.start(self._handle, self._enrol)

    async def close(self) -> None:
        for agent in self._agents:
            if agent.process.returncode is None:
                agent.process.kill()
            await agent.process.wait()
        await asyncio.gather(*self._sending)
        await self._server.close()
        await self.link.close()

    async def _enrol(self, key: str, message: m.Enrol) -> m.Enrolled | m.Refused:
        if self.refusal is not None:
            self.refused_keys.append(key)
            self._news.set()
            return self.refusal
        assert message.proof == proof_under(secret_key(self.secret), key)
        self.allowed.peers[key] = Peer("agent-x", message.name, "agent")
        return m.Enrolled("agent-x", self.link.link_port)

    def _handle(self, key: str, message: m.Message, frames: list) -> None:
        self.key = key
        self.heard.append((message, [bytes(frame) for frame in frames]))
        match message:
            case m.Hello() if self.welcomes:
                self._hello(message)
            case m.Heartbeat():
                self.send(m.HeartbeatReply(self.epoch))
            case m.WhoHas():
                self.send(self.desk.peers(message, "agent-x", self.fleet))
            case m.Progress() | m.Result() | m.Failed() if self.acks:
                what = type(message).__name__.lower()
                self.send(m.Ack(message.request_id, message.fence, what, "committed"))
        self._news.set()

    def _hello(self, hello: m.Hello) -> None:
        self.fleet.hello(Member("agent-x", hello.name, "agent", hello.workers, 0.0, 0.0))
        rewards = ("ocr", "ocr_ctc")
        self.send(m.Welcome("agent-x", self.epoch, 0.2, 2, rewards, RANK, ALPHA, "float32"))
        for greeting in self.desk.greeting():
            self.send(greeting)


@pytest.fixture
def play(tmp_path: Path):
    """Run a test's script, an async function of the daemon, while the daemon runs."""

    async def run(script) -> None:
        daemon = ScriptedDaemon(tmp_path)
        daemon.start()
        try:
            await script(daemon)
        finally:
            await daemon.close()

    return lambda script: asyncio.run(run(script))


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory):
    """A model whose adapter changes something, and the folder with that adapter's file."""
    import torch

    from spotlightd.dit.lora import adapter_bytes, adapter_parameters, attach_lora
    from spotlightd.dit.models import load_model

    model = load_model(EMBEDDED_DIR)
    attach_lora(model, RANK, ALPHA)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in adapter_parameters(model).values():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.02)
    folder = tmp_path_factory.mktemp("adapter")
    (folder / "adapter.safetensors").write_bytes(adapter_bytes(model))
    return model, folder


@pytest.fixture(scope="session")
def make_request(policy):
    """Build requests of `steps` denoising steps, the first two stochastic."""
    model, _ = policy

    def make(seed: int, kind: str = "rollout", steps: int = 6, version: int = 0) -> Request:
        settings = SamplerSettings(model.sigmas(steps), "flow_cps", 0.7, (0, 1), 1.0, 32, 128)
        prompt = 'A shop sign that reads "OPEN".'
        name = f"{kind}-{seed}"
        return Request(name, kind, 0, "open", prompt, "OPEN", seed, version, settings)

    return make
