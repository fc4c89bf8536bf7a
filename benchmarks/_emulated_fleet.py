"""Agents without GPUs: each with its own key, session, beats, credit and leases, in one process.

Enrolment and the state of pulled work are the agent's own code (`agent.enrol`, `wire.pull`); only
the link is lighter than its own, one plain socket an agent, and sampling is a timer. They take no
weights: an agent says that it holds what is announced to it.

    Hello -> Welcome -> beats; PublishedVersion -> Give -> Grant -> Progress ... Result -> Ack
"""

import asyncio
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import zmq

from agent.enrol import Identity, enrol
from spotlightd.wire import messages as m
from spotlightd.wire.codec import LINK, Buffer, frame_specs
from spotlightd.wire.pull import PullState
from spotlightd.wire.token import parse_token
from spotlightd.wire.weights import PublishedVersion

TRAJECTORY_BYTES, IMAGE_BYTES = 45_000, 1_000
PIECES = 3
"""Equal parts of a trajectory: after each but the last its state is committed."""
ENROLMENTS = 8
"""At the same time."""
SPREAD = 0.3
"""Of a trajectory's time, both ways."""
CHUNK_PORT = 9
"""Weights are announced to agents that serve them; nobody asks these for any."""
NOISE = os.urandom(TRAJECTORY_BYTES)


@dataclass
class Seen:
    """What the emulated fleet saw."""

    lease_s: list[tuple[float, float]] = field(default_factory=list)
    """(when, seconds from asking for work to having it)."""
    beat_s: list[tuple[float, float]] = field(default_factory=list)
    """(when, seconds from a heartbeat to its answer)."""
    acked: dict[str, int] = field(default_factory=dict)
    """Results that were acknowledged as committed: request -> fence."""
    stale: int = 0
    resumed: int = 0
    progress: int = 0
    hellos: int = 0
    lag_s: list[float] = field(default_factory=list)
    """How late this process itself was."""


class EmulatedAgent:
    """Args:
    keeper: it keeps one lease to the end, so that the phase does not end.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        identity: Identity,
        trajectory_s: float,
        seen: Seen,
        keeper: bool,
    ) -> None:
        self.agent_id = identity.agent_id
        self.pull = PullState(1)
        self.kept: set[str] = set()
        self.keeper = keeper
        self._name = identity.name
        self._seen, self._trajectory_s = seen, trajectory_s
        self._rng = random.Random(identity.name)
        self._loop = asyncio.get_running_loop()
        self._versions: tuple[int, ...] = ()
        self._welcome: m.Welcome | None = None
        self._asked_at = self._beat_at = 0.0
        self._steps = 0
        self._busy_s = 0.0
        self._began = time.monotonic()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._socket = context.socket(zmq.DEALER)
        self._socket.curve_serverkey = identity.server_key.encode()
        self._socket.curve_publickey = identity.public_key.encode()
        self._socket.curve_secretkey = identity.private_key.encode()
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.HANDSHAKE_IVL, 30_000),
            (zmq.HEARTBEAT_IVL, 2000),
            (zmq.HEARTBEAT_TIMEOUT, 6000),
            (zmq.HEARTBEAT_TTL, 6000),
        ):
            self._socket.setsockopt(option, value)
        self._socket.connect(identity.link_endpoint)
        self._loop.add_reader(self._socket.FD, self._read)
        self._hello()

    def vanish(self) -> set[str]:
        """Be gone without a word; return the requests that were held, or not acknowledged yet."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._loop.remove_reader(self._socket.FD)
        self._socket.close()
        return self.pull.held.keys() | self.pull.unacked.keys()

    # --- link ---------------------------------------------------------------------------------

    def _send(self, message: m.Message, frames: tuple[Buffer, ...] = ()) -> None:
        self._socket.send_multipart(LINK.encode(message, frames), copy=False)
        # Sending may eat the edge that says that there is something to read.
        self._loop.call_soon(self._read)

    def _read(self) -> None:
        while not self._socket.closed:
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            message, _ = LINK.decode(parts)
            self._handle(message)

    def _hello(self) -> None:
        protocol = (m.PROTOCOL_MAJOR, m.PROTOCOL_MINOR)
        up_s = time.monotonic() - self._began
        self._seen.hellos += 1
        self._send(m.Hello(protocol, "agent", self._name, 1, CHUNK_PORT, self.pull.hello(), up_s))

    def _handle(self, message: m.Message) -> None:
        match message:
            case m.Welcome():
                self._welcome = message
                self._beat()
                self._give()
            case m.HelloAgain():
                self._hello()
            case m.HeartbeatReply():
                now = time.monotonic()
                self._seen.beat_s.append((now, now - self._beat_at))
            case PublishedVersion():
                if message.current and message.manifest.kind == "adapter":
                    self._versions = (message.manifest.version,)
                    self._give()
            case m.Grant():
                self._granted(message)
            case m.Withdraw():
                for lease in self.pull.withdrawn(message.held):
                    self._timers.pop(lease.request_id).cancel()
                self._give()
            case m.Ack():
                self._acked(message)
            case _:
                pass

    def _beat(self) -> None:
        assert self._welcome is not None
        self._beat_at = time.monotonic()
        idle_s = max(self._beat_at - self._began - self._busy_s, 0.0)
        ready = self._versions
        self._send(m.Heartbeat(self._steps, self._busy_s, 0.0, idle_s, ready, ready))
        self._after("beat", self._welcome.heartbeat_s, self._beat)

    def _after(self, name: str, delay_s: float, what: Callable[..., None], *given: object) -> None:
        due = self._loop.time() + delay_s

        def act() -> None:
            self._seen.lag_s.append(self._loop.time() - due)
            what(*given)

        if name in self._timers:
            self._timers[name].cancel()
        self._timers[name] = self._loop.call_at(due, act)

    # --- work ---------------------------------------------------------------------------------

    def _give(self) -> None:
        credit = self.pull.take_credit() if self._versions else 0
        if credit:
            self._asked_at = time.monotonic()
            self._send(m.Give(credit, self._versions))

    def _granted(self, grant: m.Grant) -> None:
        now = time.monotonic()
        self._seen.lease_s.append((now, now - self._asked_at))
        for lease in self.pull.granted(grant.leases):
            self._seen.resumed += lease.resume_step > 0
            # Agents of a real fleet differ; these would all report at once.
            share = self._rng.random() if self._steps == 0 else 1.0
            self._sample(lease, lease.resume_step, share)

    def _sample(self, lease: m.Lease, step: int, share: float = 1.0) -> None:
        """Denoise for one piece of the trajectory from `step` on."""
        seconds = self._trajectory_s * self._rng.uniform(1 - SPREAD, 1 + SPREAD) / PIECES * share
        name = lease.request.request_id
        self._after(name, seconds, self._sampled, lease, step, seconds)

    def _sampled(self, lease: m.Lease, before: int, seconds: float) -> None:
        request, steps = lease.request, lease.request.sampler.num_steps
        step = before + -(-steps // PIECES)
        self._steps += min(step, steps) - before
        self._busy_s += seconds
        keeps = self.keeper and request.kind == "rollout"
        if (step < steps or keeps) and request.kind == "rollout":
            step = min(step, steps - 1)
            state = self._bytes(TRAJECTORY_BYTES)
            specs = frame_specs(trajectory=state)
            self._send(m.Progress(request.request_id, lease.fence, step, seconds, specs), (state,))
            self._sample(lease, step if not keeps else before)
            self.kept.update({request.request_id} if keeps else ())
            return
        frames: dict[str, Buffer] = {"image": self._bytes(IMAGE_BYTES)}
        if request.kind == "rollout":
            frames["trajectory"] = self._bytes(TRAJECTORY_BYTES)
        assert self._welcome is not None
        result = m.Result(
            request.request_id,
            lease.fence,
            dict.fromkeys(self._welcome.rewards, 0.5),
            request.target,
            seconds,
            lease.resume_step,
            frame_specs(**frames),
        )
        del self._timers[request.request_id]
        self.pull.sampled(request.request_id)
        if self.pull.finished(result, tuple(frames.values()), time.monotonic()):
            self._send(result, tuple(frames.values()))
        self._give()

    def _acked(self, ack: m.Ack) -> None:
        if ack.what == "progress":
            self._seen.progress += ack.outcome == "committed"
        elif self.pull.acked(ack.request_id, ack.fence):
            self._seen.stale += ack.outcome == "stale"
            if ack.outcome == "committed":
                assert ack.request_id not in self._seen.acked, "a result was committed twice"
                self._seen.acked[ack.request_id] = ack.fence

    def _bytes(self, size: int) -> bytes:
        """Bytes that nobody else has: blobs are named by their content."""
        return os.urandom(16) + NOISE[: size - 16]


async def join_all(
    token: str, count: int, trajectory_s: float, seen: Seen
) -> tuple["zmq.Context[zmq.Socket[bytes]]", list[EmulatedAgent]]:
    """Enrol `count` agents, a few at a time, and let each work as soon as it is in."""
    context = zmq.Context()
    # One socket an agent; ZeroMQ's default is a thousand.
    context.set(zmq.MAX_SOCKETS, count + 100)
    doors, agents = asyncio.Semaphore(ENROLMENTS), []

    async def join(number: int) -> None:
        async with doors:
            identity = await enrol(parse_token(token), f"vm{number}", 60.0)
            keeper = number == 0
            agents.append(EmulatedAgent(context, identity, trajectory_s, seen, keeper))

    await asyncio.gather(*(join(number) for number in range(count)))
    # The keeper stands first.
    return context, sorted(agents, key=lambda agent: not agent.keeper)
