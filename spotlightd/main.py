"""The daemon: wires its parts together, starts them in order and stops them in reverse.

    agents ==CURVE== Link -> FleetService -> Store          (durable, then acknowledged)
                                 |  ^
                      events     v  |  requests, withdrawals, training
                              Conductor -> Cycle             (decides the iterations)
                                 |
    trainer child ==CURVE==  TrainerChild                    (same link, role "trainer")
    spotlightctl ==Unix socket== ControlServer -> DaemonView, Answers
    browser ==loopback, reading== ControlServer
    TensorBoard and others <- TrackerChild <- Store          (a process of its own)

One asyncio loop, no torch. The only backward edge is the policy version: trained by the trainer,
published to the fleet, carried by every request.
"""

import asyncio
import logging
import signal
import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from spotlightd import logs, notify
from spotlightd.conductor import Conductor
from spotlightd.config import Config, Origins
from spotlightd.control.run_view import Answers
from spotlightd.control.server import ControlServer
from spotlightd.errors import ExitCode
from spotlightd.fleet.auth import AllowList, Peer, load_or_make_keys
from spotlightd.fleet.enrolment import Enrolment
from spotlightd.fleet.gate import Gate
from spotlightd.fleet.keys import server_keys
from spotlightd.fleet.ledger import Ledger
from spotlightd.fleet.link import Link
from spotlightd.fleet.ports import Ports, choose_ports, remember_ports
from spotlightd.fleet.scheduler import Scheduler
from spotlightd.fleet.service import TRAINER, FleetService
from spotlightd.fleet.weights_desk import WeightsDesk
from spotlightd.home import Home
from spotlightd.inputs import Inputs, read_inputs
from spotlightd.limits import raise_file_limit
from spotlightd.store.reading import open_for_reading
from spotlightd.store.store import Store
from spotlightd.telemetry.child import TrackerChild
from spotlightd.telemetry.usage import UsageRecorder
from spotlightd.trainer.settings import TrainerSettings
from spotlightd.trainer_child import TrainerChild
from spotlightd.view import DaemonView
from spotlightd.weights.chunks import ChunkStore
from spotlightd.weights.remembered import RememberedDigests
from spotlightd.weights.serve import AGAIN_S
from spotlightd.weights.server import ChunkServer
from spotlightd.wire.messages import Drain

logger = logging.getLogger(__name__)

TICK_S = 0.25
FAREWELL_S = 5.0
"""How long agents may take to say goodbye when the run is finished."""


def run(config: Config, origins: Origins) -> int:
    """Run the daemon until the run is finished or it is told to stop; return the exit code.

    Raises SpotlightError for bad input, a taken state directory, socket or port.
    """
    raise_file_limit()
    return asyncio.run(run_to_end(config, origins)).code


class Ended(NamedTuple):
    """How a daemon's work on a run ended."""

    code: int
    """Exit code of a daemon that has this run alone."""
    over: bool
    """The run is done, or an operator ended it; otherwise the next start goes on with it."""


async def run_to_end(config: Config, origins: Origins, home: Home | None = None) -> Ended:
    """Work on a run until it is over or the daemon is told to stop.

    Args:
        home: of a daemon that outlives the run; None: keys, ports and socket are the run's own.

    Raises as `run`.
    """
    logs.set_context(run=config.run.name)
    inputs = read_inputs(config)
    store = Store(Path(config.store.state_dir))
    daemon = None
    try:
        await asyncio.wrap_future(
            store.begin_run(config.run.name, msgspec.json.encode(config).decode())
        )
        if home is not None:
            await _carry_over(home, store)
        conductor = Conductor(config, store, inputs.prompts, inputs.held_out)
        daemon = Daemon(config, origins, store, inputs, conductor, home)
        code = await daemon.run()
        return Ended(code, conductor.finished.is_set())
    finally:
        if daemon is not None:
            await daemon.close()
        store.close()


async def _carry_over(home: Home, store: Store) -> None:
    """Agents that the run before let in stay let in."""
    before = home.newest(besides=store.state_dir)
    if before is None:
        return
    earlier = open_for_reading(Path(before.state_dir))
    try:
        await asyncio.wrap_future(store.admission.carry_over(earlier))
    finally:
        earlier.close()


class Daemon:
    """All parts of one daemon process, in the order in which they start."""

    def __init__(
        self,
        config: Config,
        origins: Origins,
        store: Store,
        inputs: Inputs,
        conductor: Conductor,
        home: Home | None = None,
    ) -> None:
        state_dir = Path(config.store.state_dir)
        folder = state_dir if home is None else home.folder
        run_state = store.run()
        assert run_state is not None
        self.config = config
        self.store = store
        self.conductor = conductor
        self._home = home
        self._folder = folder
        self._model_dir = inputs.model_dir
        self._stop = asyncio.Event() if home is None else home.stop
        self._keys = server_keys(folder)
        self._trainer_key_file = state_dir / "keys" / "trainer.key"
        trainer_keys = load_or_make_keys(self._trainer_key_file)
        allowed = AllowList({trainer_keys.public: Peer(TRAINER, TRAINER, "trainer")})
        self.link = Link(self._keys.pair, allowed, self._keys.previous)
        # From the first moment that it listens, whoever knocks is judged by the whole list.
        self.enrolment = Enrolment(
            store, allowed, lambda: self.link.link_port, config.fleet.key_ttl_s
        )
        ports = self._bind(choose_ports(config.link, folder))
        self._chunk_server = ChunkServer(
            self.link.context,
            ChunkStore(),
            config.link.bind,
            ports.chunk_port,
            (self._keys.public, self._keys.secret) if self._encrypts else None,
            again_s=AGAIN_S,
        )
        self._chunk_server.serving.uplink = config.weights.uplink_mb_s * 1e6
        chosen = msgspec.structs.replace(ports, chunk_port=self._chunk_server.port)
        remember_ports(chosen, folder)
        scheduler = Scheduler(
            run_state.epoch,
            config.fleet.lease_s,
            config.fleet.attempts,
            config.fleet.backup_leases,
        )
        self.fleet = FleetService(
            config,
            store,
            self.link,
            allowed,
            scheduler,
            Ledger.restore(store.accounts()),
            self._weights_desk(),
            conductor,
        )
        conductor.attach(self.fleet)
        self.gate = Gate(store, allowed, self.enrolment, self.fleet)
        self.trainer = TrainerChild(
            state_dir / "trainer.json", self._trainer_settings, self.fleet.trainer_ended
        )
        self.fleet.paused = run_state.state == "paused"
        self.view = DaemonView(
            store,
            self.fleet,
            conductor,
            self.enrolment,
            self.gate,
            lambda: f"{config.link.host}:{self.link.enrol_port}",
            self._keys.public,
            self._stop.set,
            origins,
        )
        section = config.control
        self.control = ControlServer(
            self.view,
            Answers(state_dir, None if home is None else folder),
            Path(section.socket),
            section.group,
            section.dashboard_port if section.dashboard else None,
            None if home is None else home.listener,
        )
        self._usage = UsageRecorder(store, self.fleet.ledger, self.fleet.members)
        self._trackers = TrackerChild(
            state_dir,
            config.telemetry.trackers,
            lambda text: self.fleet.event("warning", "telemetry", text),
        )

    def _bind(self, ports: Ports) -> Ports:
        """Listen under the current server key, and under the one before; return their ports."""
        host, slot = self.config.link.bind, self._keys.slot
        self.link.bind(host, *ports.of(slot))
        ports = ports.taken(slot, self.link.link_port, self.link.enrol_port)
        previous = self.link.previous
        if previous is not None:
            previous.bind(host, *ports.of(1 - slot))
            ports = ports.taken(1 - slot, previous.link_port, previous.enrol_port)
        return ports

    async def run(self) -> int:
        """Start everything, then wait for the end of the run, a signal, or the trainer's end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        self.fleet.weights.publish_base(self._model_dir)
        self._chunk_server.start()
        self.conductor.resume()
        self.link.start(self.fleet.handle, self.enrolment.enrol)
        await self.control.start()
        self.view.dashboard = self.control.dashboard
        self.fleet.event(
            "info",
            "fleet",
            f"spotlightd is up (epoch {self.fleet.scheduler.epoch}): enrolment on port "
            f"{self.link.enrol_port}, control on {self.config.control.socket}, dashboard "
            f"{self.control.dashboard or 'off'}",
        )
        notify.ready("training")
        return await self._supervise()

    async def _supervise(self) -> int:
        trainer = asyncio.create_task(self.trainer.run(), name="trainer")
        conducting = asyncio.create_task(self.conductor.run(), name="conductor")
        listening = asyncio.create_task(self.link.failed(), name="link")
        background = [
            asyncio.create_task(self._tick(), name="tick"),
            asyncio.create_task(self._trackers.run(), name="trackers"),
            asyncio.create_task(notify.keep_watchdog(self._proof_of_life), name="watchdog"),
        ]
        finished = asyncio.create_task(self.conductor.finished.wait(), name="finished")
        stopped = asyncio.create_task(self._stop.wait(), name="stopped")
        ends = {trainer, conducting, listening, finished, stopped}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if finished.done():
                await self._farewell()
                return ExitCode.OK
            if trainer.done() and not stopped.done():
                code = trainer.result()
                self.fleet.event("error", "trainer", f"the trainer ended with exit code {code}")
                return code
            for essential in (conducting, listening):
                if essential.done():
                    essential.result()
            return ExitCode.OK
        finally:
            if self._home is None or stopped.done():
                notify.stopping("stopping")
            await self.trainer.stop()
            for task in (*ends, *background):
                task.cancel()
            await asyncio.gather(*ends, *background, return_exceptions=True)
            await self._trackers.stop()

    async def _farewell(self) -> None:
        """Send the agents home: the run is finished."""
        text = "the run is stopped" if self.conductor.stopped else "the run is finished"
        self.fleet.event("info", "planner", text)
        self.fleet.draining = True
        self.fleet.broadcast(Drain(FAREWELL_S, text, run_finished=True))
        # Each farewell is an event.
        deadline = time.monotonic() + FAREWELL_S
        while self.fleet.agents_present() and (left := deadline - time.monotonic()) > 0:
            await self.fleet.events.wait(left)

    async def close(self) -> None:
        """Stop listening, finish commits that are under way, keep the accounts."""
        await self.control.close()
        self.view.close()
        await self.fleet.close()
        self._usage.write(time.time(), self.fleet.notices)
        await asyncio.wrap_future(self.store.save_accounts(self.fleet.ledger.dump(time.time())))
        await self._chunk_server.close()
        await self.link.close()

    async def _tick(self) -> None:
        while True:
            self.fleet.tick()
            self.gate.tick(time.time())
            self.conductor.tick()
            self._usage.tick(time.time(), self.fleet.notices)
            self.store.save_accounts(self.fleet.ledger.dump(time.time()))
            await asyncio.sleep(TICK_S)

    async def _proof_of_life(self) -> None:
        """A round trip through the event loop and the store's writer."""
        await asyncio.wrap_future(self.store.save_accounts(self.fleet.ledger.dump(time.time())))

    def _weights_desk(self) -> WeightsDesk:
        config = self.config
        endpoint = f"tcp://{config.link.host}:{self._chunk_server.port}"
        return WeightsDesk(
            self._chunk_server.store,
            self._chunk_server,
            endpoint,
            config.weights.chunk_bytes,
            self._keys.public if self._encrypts else "",
            RememberedDigests(self._folder / "digests.msgpack"),
        )

    @property
    def _encrypts(self) -> bool:
        return self.config.weights.transport == "curve"

    def _trainer_settings(self) -> TrainerSettings:
        run_state = self.store.run()
        assert run_state is not None
        started = bool(run_state.cycle)
        self.fleet.trainer.started()
        return TrainerSettings(
            config=self.config,
            state_dir=self.config.store.state_dir,
            model_dir=str(self._model_dir),
            link_endpoint=f"tcp://127.0.0.1:{self.link.link_port}",
            server_key=self._keys.public,
            key_file=str(self._trainer_key_file),
            resume_version=run_state.policy_version if started else -1,
        )
