"""Mutated messages into a real FleetService: as an agent's, as the trainer's, as a stranger's.

Everything is the daemon's own but the wire: what the link would read is handed to `Link.hear`, what
it would send is kept. After each message all work that it caused is waited for, so that a frame
meets the same state in every run with its seed.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import zmq

from spotlightd.atomic import digest_of
from spotlightd.config import Config
from spotlightd.errors import SpotlightError
from spotlightd.fleet.auth import AllowList, KeyPair, Peer
from spotlightd.fleet.enrolment import Enrolment
from spotlightd.fleet.ledger import Ledger
from spotlightd.fleet.link import Link
from spotlightd.fleet.scheduler import Scheduler
from spotlightd.fleet.service import TRAINER, FleetService
from spotlightd.fleet.weights_desk import WeightsDesk
from spotlightd.sections import FleetSection
from spotlightd.store.rows import StoredResult
from spotlightd.store.store import Store
from spotlightd.weights.chunks import ChunkStore
from spotlightd.weights.server import ChunkServer
from spotlightd.wire import messages as m
from spotlightd.wire import training
from spotlightd.wire.codec import LINK, Buffer, WireError, frame_specs
from spotlightd.wire.token import Token, parse_token, proof_under, secret_key
from tests.fuzz.corpus import (
    BY_AGENT,
    BY_NEWCOMER,
    BY_OTHERS,
    BY_TRAINER,
    LINK_MAKERS,
    PNG,
    PROTOCOL,
    Parts,
    encode,
    link_message,
    make_request,
    trajectory_bytes,
)
from tests.fuzz.escaped import Escaped
from tests.fuzz.mutate import mutated

HOSTILE, HONEST, TRAINERS = "hostile", "honest", TRAINER
KEYS = {agent_id: f"{agent_id:0<40}" for agent_id in (HOSTILE, HONEST, TRAINERS)}
OPEN_REQUESTS = 48
SCORES = {"ocr": 0.5, "ocr_ctc": 0.5, "grain": 0.5}


class KeptLink(Link):
    """A link that keeps what it would send, and sees to it that a peer could read it."""

    def __init__(self, allowed: AllowList) -> None:
        public, secret = zmq.curve_keypair()
        super().__init__(KeyPair(public.decode(), secret.decode()), allowed)
        self.sent: dict[str, list[tuple[m.Message, list[Buffer]]]] = {}

    async def send(self, key: str, message: m.Message, frames: Sequence[Buffer] = ()) -> bool:
        try:
            self.sent.setdefault(key, []).append(LINK.decode(LINK.encode(message, frames)))
        except WireError as error:
            raise Escaped(f"the daemon would send what no peer reads: {error}") from error
        return key in self._routes

    def take(self, key: str) -> list[tuple[m.Message, list[Buffer]]]:
        return self.sent.pop(key, [])


class Heard:
    """In the conductor's place: counts what reaches it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def result_committed(self, result: StoredResult, gpu_s: float) -> None:
        self.counts["results"] += 1

    def heartbeat(self, agent_id: str, denoise_steps: int, busy_s: float) -> None:
        self.counts["heartbeats"] += 1

    def request_given_up(self, request_id: str) -> None:
        self.counts["given up"] += 1

    def trainer_ready(self, message: training.TrainerReady) -> None:
        self.counts["trainer ready"] += 1

    def damaged(self, message: training.Damaged) -> None:
        self.counts["damaged"] += 1

    def trained(self, message: training.Trained) -> None:
        self.counts["trained"] += 1


class Traces(logging.Handler):
    """Collects every record with a trace: in the daemon each of them is a bug that was survived."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] and not self._typed(record.exc_info[1]):
            self.found.append(record.exc_info[1])

    @staticmethod
    def _typed(error: BaseException) -> bool:
        return isinstance(error, SpotlightError)


class DispatchTarget:
    """One daemon's fleet service, fed frame by frame."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.outcomes: Counter[str] = Counter()
        self.heard = Heard()
        self.store = Store(folder / "state")
        self.store.begin_run("fuzz", "{}").result()
        self.allowed = AllowList(
            {
                KEYS[HOSTILE]: Peer(HOSTILE, "vm", "agent"),
                KEYS[HONEST]: Peer(HONEST, "vm", "agent"),
                KEYS[TRAINERS]: Peer(TRAINERS, TRAINERS, "trainer"),
            }
        )
        self.link = KeptLink(self.allowed)
        self.enrolment = Enrolment(self.store, self.allowed, lambda: 4000)
        self.token = self._make_token()
        # Long leases and patience: no frame's fate depends on how fast this machine is.
        fleet = FleetSection(suspect_s=1e6, lost_s=1e7, lease_s=1e6)
        chunks = ChunkStore()
        server = ChunkServer(self.link.context, chunks, "127.0.0.1", 0)
        self._server = server
        self.service = FleetService(
            Config(fleet=fleet),
            self.store,
            self.link,
            self.allowed,
            Scheduler(1, fleet.lease_s, fleet.attempts),
            Ledger(),
            WeightsDesk(chunks, server, f"tcp://127.0.0.1:{server.port}", 4096),
            self.heard,
        )
        self._publish(folder)
        self._asked = 0
        self._traces = Traces()
        logging.getLogger("spotlightd").addHandler(self._traces)

    async def close(self) -> None:
        logging.getLogger("spotlightd").removeHandler(self._traces)
        await self._settle()
        await self._server.close()
        await self.link.close()
        self.store.close()

    def _make_token(self) -> Token:
        text, _, _ = self.enrolment.create_token("127.0.0.1:1", "0" * 40, 1e6, 2**31, "pool")
        return parse_token(text)

    def _publish(self, folder: Path) -> None:
        for name in ("base", "0"):
            (folder / name).mkdir()
            (folder / name / "w.bin").write_bytes(name.encode() * 5000)
        self.service.weights.publish_base(folder / "base")
        self.service.weights.publish_adapter(0, folder / "0")

    # --- one frame ----------------------------------------------------------------------------

    def frame(self, index: int) -> tuple[str, Parts]:
        """Return who sends the frame of this index, and the frame."""
        rng = Random(f"{self.seed}:{index}")
        leases = self._leases(rng)
        (sender,) = rng.choices((HOSTILE, TRAINERS, "stranger", "newcomer"), (14, 2, 2, 2))
        makers = {HOSTILE: BY_AGENT, TRAINERS: BY_TRAINER + BY_AGENT, "newcomer": BY_NEWCOMER}
        chosen = LINK_MAKERS if rng.random() < 0.1 else makers.get(sender, LINK_MAKERS)
        if sender == "newcomer" and chosen is BY_NEWCOMER:
            parts = encode(LINK, (self._enrol(rng), {}))
        else:
            parts = link_message(rng, chosen, leases)
        other = link_message(rng, LINK_MAKERS + BY_OTHERS, leases)
        return sender, mutated(rng, parts, other)

    def _leases(self, rng: Random) -> list[m.HeldLease]:
        """Return what a hostile agent may know of: mostly its own leases, and others' ids."""
        entries = self.service.scheduler.entries
        puller = self.service.scheduler.pullers.get(HOSTILE)
        mine = sorted(puller.held | puller.backups) if puller else []
        names = rng.sample(mine, min(len(mine), 4)) + rng.sample(
            list(entries), min(2, len(entries))
        )
        return [m.HeldLease(name, max(entries[name].fence, 1)) for name in names]

    def _enrol(self, rng: Random) -> m.Enrol:
        key = "".join(rng.choices("abcdefghij0123456789", k=40))
        proof = proof_under(secret_key(self.token.secret), key)
        return m.Enrol(PROTOCOL, self.token.token_id, key, proof, "vm")

    async def feed(self, index: int) -> None:
        """Make, decode and dispatch one frame. Raises Escaped, with the frame's index."""
        await self._prepare(index)
        sender, parts = self.frame(index)
        try:
            decoded = self._decode(parts)
            if sender == "newcomer":
                await self._knock(parts, decoded)
            else:
                key = KEYS.get(sender, "x" * 40)
                before = len(self.link._routes)
                self.link.hear(self.service.handle, sender.encode(), key, "10.0.0.9", list(parts))
                if sender == "stranger" and len(self.link._routes) != before:
                    raise Escaped("a stranger was heard")
            await self._settle()
            if self._traces.found:
                raise self._traces.found[0]
        except Exception as error:
            shown = " ".join(part[:2000].hex() for part in parts)
            raise Escaped(
                f"frame {index} of seed {self.seed}, from {sender}: {error!r}\n{shown}"
            ) from error

    def _decode(self, parts: Parts) -> m.Message | None:
        try:
            message, _ = LINK.decode(parts)
        except WireError:
            self.outcomes["refused by decode"] += 1
            return None
        self.outcomes[type(message).__name__] += 1
        return message

    async def _knock(self, parts: Parts, decoded: m.Message | None) -> None:
        key = decoded.public_key if isinstance(decoded, m.Enrol) else "y" * 40
        answer = await self.link.hear_newcomer(self.enrolment.enrol, key, list(parts))
        LINK.decode(LINK.encode(answer))
        if isinstance(answer, m.Enrolled):
            proof = proof_under(secret_key(self.token.secret), key)
            if not isinstance(decoded, m.Enrol) or decoded.proof != proof:
                raise Escaped("a newcomer was enrolled without the token's secret")
            self.outcomes["newcomers enrolled"] += 1
            self.allowed.peers.pop(key)

    async def _settle(self) -> None:
        """Wait for everything that a message has set going, dispatch included."""
        for _ in range(3):
            await asyncio.sleep(0)
            await self.service.close()

    async def _prepare(self, index: int) -> None:
        """Now and then, work is added and the hostile agent introduces itself, as a real one."""
        scheduler = self.service.scheduler
        if index % 20 == 0:
            for agent_id in (HOSTILE, TRAINERS):
                if not self.service.members.may_lease(agent_id):
                    self._say(agent_id, m.Hello(PROTOCOL, "agent", "vm", 1, 7000))
                if agent_id == HOSTILE and len(scheduler.pullers[HOSTILE].held) < 4:
                    self._say(agent_id, m.Give(4, (0,)))
        waiting = sum(entry.state in ("queued", "leased") for entry in scheduler.entries.values())
        if index % 20 == 0 and waiting < OPEN_REQUESTS:
            self.add_requests(OPEN_REQUESTS - waiting)
        await self._settle()
        self.link.sent.clear()

    def add_requests(self, count: int) -> None:
        kinds = ("rollout", "evaluate", "explore")
        numbers = range(self._asked, self._asked + count)
        requests = [make_request(f"r{i}", kinds[i % 3], i) for i in numbers]
        self._asked += count
        self.store.save_cycle("{}", 0, requests)
        self.service.scheduler.add(requests)
        self.service.dispatch_soon()

    def _say(self, agent_id: str, message: m.Message, frames: Sequence[bytes] = ()) -> None:
        parts = [bytes(part) for part in LINK.encode(message, frames)]
        self.link.hear(
            self.service.handle, agent_id.encode(), KEYS[agent_id], "10.0.0.8", list(parts)
        )

    # --- what must hold -----------------------------------------------------------------------

    def validate(self) -> None:
        """Raise AssertionError where the daemon's state contradicts itself."""
        self.service.scheduler.validate()
        self.service.members.validate()
        self.service.ledger.validate(time.time())
        assert self.store.count_lost() == 0
        # As the conductor does after each phase.
        self.service.scheduler.forget_settled()

    async def serve_an_honest_agent(self, rng: Random) -> None:
        """Raise AssertionError unless an honest agent gets a lease, commits, and finds it kept."""
        await self._ask(HONEST, m.Hello(PROTOCOL, "agent", "honest", 1, 0), m.Welcome)
        await self._ask(HONEST, m.Heartbeat(0, 0.0, 0.0, 0.0, (), (0,)), m.HeartbeatReply)
        # Whoever hoards leases loses them as a process that restarted.
        self._say(HOSTILE, m.Hello(PROTOCOL, "agent", "vm", 1, 7000))
        await self._settle()
        self.add_requests(4)
        grant, _ = await self._ask(HONEST, m.Give(1, (0,)), m.Grant)
        assert isinstance(grant, m.Grant)
        (lease,) = grant.leases
        request_id, fence = lease.request.request_id, lease.fence
        step = max(lease.resume_step, 1)
        state = trajectory_bytes(rng, step)
        progress = m.Progress(request_id, fence, step, 0.1, frame_specs(trajectory=state))
        ack, _ = await self._ask(HONEST, progress, m.Ack, [state])
        assert ack == m.Ack(request_id, fence, "progress", "committed"), ack
        whole = trajectory_bytes(rng, 4)
        result = m.Result(
            request_id, fence, SCORES, "A", 0.2, 0, frame_specs(trajectory=whole, image=PNG)
        )
        ack, _ = await self._ask(HONEST, result, m.Ack, [whole, PNG])
        assert ack == m.Ack(request_id, fence, "result", "committed"), ack
        (stored,) = self.store.results([request_id])
        assert stored.trajectory == digest_of(whole) and stored.agent_id == HONEST, stored
        self._say(HONEST, m.Goodbye("done"))
        await self._settle()

    async def _ask(
        self, agent_id: str, message: m.Message, kind: type[m.Message], frames: Sequence[bytes] = ()
    ) -> tuple[m.Message, list[Buffer]]:
        self.link.take(KEYS[agent_id])
        self._say(agent_id, message, frames)
        await self._settle()
        answers = self.link.take(KEYS[agent_id])
        found = [answer for answer in answers if isinstance(answer[0], kind)]
        assert found, f"{type(message).__name__} was answered by {answers}"
        return found[0]
