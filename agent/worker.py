"""The worker process: `python -m agent.worker FD`. Holds the model and denoises; one per GPU.

It talks to its agent alone. Between two denoising steps it reads what has arrived, so that
cancellation, new leases and a preemption notice wait for one step at most. Everything leased and
compatible shares a batch, each trajectory at its own step. In a sequence-parallel view every member
holds the same trajectories and takes the same steps; its leader alone commits and finishes.
"""

import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from agent.commit_pace import CommitPace
from agent.seat import Seat
from spotlightd.childproc import Channel, enter_child
from spotlightd.dit.lora import attach_lora
from spotlightd.dit.models import load_model
from spotlightd.dit.png import encode_png
from spotlightd.dit.sampler import Sampler, compatible
from spotlightd.dit.sp_group import GroupBrokenError
from spotlightd.dit.trajectory import Trajectory, encode_trajectory
from spotlightd.dit.versions import Versions
from spotlightd.errors import ExitCode, InputError, SpotlightError
from spotlightd.wire import pipe
from spotlightd.wire import worker as w
from spotlightd.wire.codec import Buffer, frame_specs
from spotlightd.wire.messages import HeldLease, Lease
from spotlightd.wire.sampling import PRIORITY

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Running:
    lease: Lease
    trajectory: Trajectory
    gpu_s: float = 0.0
    """GPU-seconds since the last commit of this trajectory."""

    @property
    def held(self) -> HeldLease:
        return HeldLease(self.lease.request.request_id, self.lease.fence)


class Worker:
    """One process's state: the model, adapters by version, and trajectories in flight."""

    def __init__(self, channel: Channel, load: w.Load) -> None:
        torch.set_num_threads(load.threads)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._channel = channel
        self._pace = CommitPace(load.commit_every)
        self._model = load_model(Path(load.model_dir), DTYPES[load.dtype], device)
        if load.lora_rank:
            attach_lora(self._model, load.lora_rank, load.lora_alpha)
        self._sampler = Sampler(self._model)
        self._versions = Versions(self._model)
        self._loader = ThreadPoolExecutor(1, "adapter loader")
        self._loading: list[tuple[w.Bind, Future[dict[str, torch.Tensor]], float]] = []
        """Versions being prepared while others are sampled with, and since when."""
        self._seat = Seat(self._model)
        self._running: dict[str, Running] = {}
        self._stopped = False

    def run(self) -> None:
        """Work until Exit or until the agent is gone (EOFError)."""
        while True:
            self._bind_loaded()
            working = bool(self._running) or self._seat.together
            received = self._channel.receive(0 if working else None)
            if received is not None:
                message, frames = received
                if isinstance(message, w.Exit):
                    return
                self._handle(message, frames)
            elif self._seat.together:
                self._step_together()
            elif self._running:
                self._step()

    # --- messages -----------------------------------------------------------------------------

    def _handle(self, message: object, frames: Sequence[Buffer]) -> None:
        match message:
            case w.Bind():
                self._bind(message)
            case w.Sample(generation=0):
                self._start(message.lease, frames[0] if frames else None)
            case w.Sample():
                self._seat.expect(message, frames)
            case w.Enter():
                self._enter(message)
            case w.Part():
                self._part(message.generation)
            case w.CancelLeases():
                self._cancel(message.held)
            case w.Flush():
                self._flush(message.stop)
            case _:
                raise SpotlightError(f"the agent sent an unexpected {type(message).__name__}")

    def _bind(self, message: w.Bind) -> None:
        if not Path(message.path).exists():
            # Newer versions came so fast that this one is evicted already.
            return
        loading = self._loader.submit(self._versions.prepare, Path(message.path), message.digest)
        self._loading.append((message, loading, time.monotonic()))

    def _bind_loaded(self) -> None:
        """Take versions into use whose preparation has ended; wait for it when there is nothing
        else to do. Raises InputError where one does not fit.
        """
        while self._loading and (self._loading[0][1].done() or not self._running):
            message, loading, began = self._loading.pop(0)
            try:
                prepared = loading.result()
            except InputError:
                if Path(message.path).exists():
                    raise
                continue  # It was evicted while it was being read.
            self._versions.add(message.version, prepared)
            # Using it at once proves that it binds; sampling switches between those kept.
            self._versions.use(message.version)
            self._channel.send(w.Bound(message.version, len(prepared), time.monotonic() - began))

    def _start(self, lease: Lease, state: Buffer | None) -> None:
        request = lease.request
        running = Running(lease, Trajectory(request, torch.empty(0)))
        try:
            if self._stopped:
                raise SpotlightError("the worker is stopping")
            if request.policy_version not in self._versions:
                raise SpotlightError(f"version {request.policy_version} is not bound here")
            running.trajectory = self._sampler.start(request, state)
        except SpotlightError as error:
            self._break(running, str(error))
            return
        self._running[request.request_id] = running

    # --- views --------------------------------------------------------------------------------

    def _enter(self, message: w.Enter) -> None:
        began = time.monotonic()
        if message.generation <= self._seat.generation or self._seat.together:
            reason = f"generation {self._seat.generation} is newer, or not left"
            self._channel.send(w.Left(message.generation, "broken", reason))
            return
        try:
            leased = self._seat.enter(message)
        except GroupBrokenError as error:
            self._leave("broken", str(error))
            return
        for sample, frames in leased:
            self._start(sample.lease, frames[0] if frames else None)
        try:
            self._seat.compare([(r.held, r.trajectory.step_index) for r in self._running.values()])
        except GroupBrokenError as error:
            self._leave("broken", str(error))
            return
        self._channel.send(w.Entered(message.generation, time.monotonic() - began))
        # Some may have taken their last step in a view whose leader did not live to finish them.
        done = [r for r in self._running.values() if r.trajectory.done]
        for running in done if self._seat.leads else ():
            (image,) = self._sampler.decode([running.trajectory])
            self._finish(running, encode_png(image))

    def _part(self, generation: int) -> None:
        if generation != self._seat.generation:
            return
        if self._seat.together:
            self._seat.parting = True
        else:
            self._leave("asked")

    def _step_together(self) -> None:
        seat = self._seat
        stop = seat.leads and (seat.parting or not self._running)
        try:
            goes_on = seat.goes_on(stop)
            # The leader's word says that it sent what was finished; until then all kept it.
            self._running = {k: r for k, r in self._running.items() if not r.trajectory.done}
            if goes_on:
                self._step()
            else:
                self._leave("asked" if self._running else "done")
        except GroupBrokenError as error:
            self._leave("broken", str(error))

    def _leave(self, why: Literal["asked", "done", "broken"], reason: str = "") -> None:
        """Hand over what is held: the leader's at a boundary, everybody's when a step broke."""
        if self._seat.leads or why == "broken":
            for running in self._running.values():
                state = encode_trajectory(running.trajectory)
                held, step = running.held, running.trajectory.step_index
                specs = frame_specs(trajectory=state)
                gpu_s = running.gpu_s if self._seat.leads else 0.0
                handed = w.Handed(
                    self._seat.generation, held.request_id, held.fence, step, gpu_s, specs
                )
                self._channel.send(handed, [state])
        self._running.clear()
        self._seat.leave(broken=why == "broken")
        self._channel.send(w.Left(self._seat.generation, why, reason[:2000]))

    def _cancel(self, held: Sequence[HeldLease]) -> None:
        dropped, gpu_s = [], 0.0
        for lease in held:
            running = self._running.get(lease.request_id)
            if running is not None and running.lease.fence == lease.fence:
                gpu_s += self._running.pop(lease.request_id).gpu_s
                dropped.append(lease)
                # The other members of a view learn it when they enter the next.
                self._seat.parting = self._seat.together
        self._channel.send(w.Cancelled(tuple(dropped), gpu_s))

    def _flush(self, stop: bool) -> None:
        held = tuple(running.held for running in self._running.values())
        for running in self._running.values():
            if running.trajectory.step_index > 0 and not running.lease.backup:
                self._send_state(running)
        if stop:
            self._stopped = True
            self._running.clear()
        self._channel.send(w.Flushed(held, 0.0))

    # --- sampling -----------------------------------------------------------------------------

    def _step(self) -> None:
        batch = self._choose()
        began = time.monotonic()
        try:
            self._versions.use(batch[0].lease.request.policy_version)
            self._sampler.advance([running.trajectory for running in batch])
            leads = self._seat.leads
            done = [running for running in batch if leads and running.trajectory.done]
            images = self._sampler.decode([r.trajectory for r in done]) if done else []
        except (FloatingPointError, RuntimeError) as error:
            if self._seat.together and isinstance(error, RuntimeError):
                raise GroupBrokenError(f"this member's step failed: {error}") from None
            for running in batch:
                self._break(running, str(error))
            return
        busy_s = time.monotonic() - began
        for running in batch:
            running.gpu_s += busy_s * self._seat.degree / len(batch)
        pace, steps = self._pace, len(batch) if leads else 0
        self._channel.send(w.Boundary(steps, busy_s, pace.every, pace.cost_share))
        for running, image in zip(done, images, strict=True):
            self._finish(running, encode_png(image))
        if leads:
            self._commit([running for running in batch if not running.trajectory.done], busy_s)

    def _choose(self) -> list[Running]:
        """Return the batch: the most urgent kind's version, and all that is compatible."""
        first = min(self._running.values(), key=lambda r: PRIORITY.index(r.lease.request.kind))
        version = first.lease.request.policy_version
        return [
            running
            for running in self._running.values()
            if running.lease.request.policy_version == version
            and compatible(running.lease.request.sampler, first.lease.request.sampler)
        ]

    def _commit(self, batch: Sequence[Running], step_s: float) -> None:
        """Hand over the state of rollouts every few steps; exploration is cheap to redo, and who
        runs a backup is not the one to resume from.
        """
        every = self._pace.every
        due = [
            running
            for running in batch
            if every
            and running.trajectory.step_index % every == 0
            and running.lease.request.kind == "rollout"
            and not running.lease.backup
        ]
        if due:
            began = time.monotonic()
            for running in due:
                self._send_state(running)
            self._pace.observe(time.monotonic() - began, step_s * len(due) / len(batch))

    # --- answers ------------------------------------------------------------------------------

    def _send_state(self, running: Running) -> None:
        state = encode_trajectory(running.trajectory)
        self._channel.send(
            w.StepState(
                running.held.request_id,
                running.held.fence,
                running.trajectory.step_index,
                running.gpu_s,
                frame_specs(trajectory=state),
            ),
            [state],
        )
        running.gpu_s = 0.0

    def _finish(self, running: Running, image: bytes) -> None:
        held = running.held
        del self._running[held.request_id]
        frames: dict[str, Buffer] = {"image": image}
        if running.lease.request.kind == "rollout":
            frames = {"trajectory": encode_trajectory(running.trajectory), "image": image}
        resumed_from = running.lease.resume_step
        self._channel.send(
            w.Finished(
                held.request_id, held.fence, running.gpu_s, resumed_from, frame_specs(**frames)
            ),
            list(frames.values()),
        )

    def _break(self, running: Running, reason: str) -> None:
        """Give up a lease; every member of a view comes to the same, and the leader says so."""
        self._running.pop(running.held.request_id, None)
        held = running.held
        if self._seat.leads:
            said = w.Broken(held.request_id, held.fence, reason[:2000], running.gpu_s)
            self._channel.send(said)


def main(argv: list[str]) -> int:
    channel = Channel(enter_child(argv), receives=pipe.TO_WORKER, sends=pipe.FROM_WORKER)
    try:
        received = channel.receive()
        assert received is not None
        load, _ = received
        if not isinstance(load, w.Load):
            raise SpotlightError(f"expected Load first, got {type(load).__name__}")
        began = time.monotonic()
        worker = Worker(channel, load)
        channel.send(w.Loaded(time.monotonic() - began))
        worker.run()
    except EOFError:
        return ExitCode.OK
    except SpotlightError as error:
        channel.send(w.Fatal(str(error)[:2000]))
        return error.exit_code
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv))
