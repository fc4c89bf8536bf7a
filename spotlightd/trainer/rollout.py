"""The trainer as a worker between updates: leases in, denoising steps, results out.

The protocol is `wire/pull.py`, as in the agent; the samples come from the weights that train, so
a large model is held once. Rewards are computed in a scorer process of its own.
"""

import logging
import time
from collections.abc import Callable, Sequence

from spotlightd.childproc import Channel, spawn
from spotlightd.dit.models import DiffusionModel
from spotlightd.dit.png import encode_png
from spotlightd.dit.sampler import Sampler
from spotlightd.dit.trajectory import Trajectory, encode_trajectory
from spotlightd.errors import SpotlightError
from spotlightd.sections import RewardsSection
from spotlightd.wire import messages as m
from spotlightd.wire import pipe
from spotlightd.wire.codec import Buffer, frame_specs
from spotlightd.wire.pull import PullState, states_by_fence
from spotlightd.wire.sampling import AVERAGES_FROM
from spotlightd.wire.worker import Exit, Fatal, Score, Scored, ScoreItem, Scores

logger = logging.getLogger(__name__)

SCORER_BATCH = 8

Send = Callable[[m.Message, Sequence[Buffer]], None]
Select = Callable[[bool], None]


class Rollouts:
    """Everything that the trainer samples and has not reported yet.

    Args:
        select: puts the weights' average (True) or the live weights into the model.
    """

    def __init__(
        self,
        model: DiffusionModel,
        capacity: int,
        rewards: RewardsSection,
        send: Send,
        select: Select,
    ) -> None:
        self.pull = PullState(capacity)
        self._model = model
        self._sampler = Sampler(model)
        self._rewards, self._reward_options = rewards.names, rewards.options()
        self._send = send
        self._select = select
        self._given: tuple[int, ...] = ()
        """Versions of the last Give in this session."""
        self._running: dict[str, Trajectory] = {}
        self._gpu_s: dict[str, float] = {}
        self._finished: dict[str, tuple[Trajectory, bytes]] = {}
        self._scoring: set[str] = set()
        self._process, sock = spawn("spotlightd.rewards.scorer")
        self.scorer = Channel(sock, receives=pipe.FROM_SCORER, sends=pipe.TO_SCORER)

    @property
    def active(self) -> bool:
        return bool(self._running)

    def give(self, versions: tuple[int, ...]) -> None:
        """Ask for as much work as fits; credit given before now counts for these versions."""
        credit = self.pull.take_credit()
        if credit or versions != self._given:
            self._given = versions
            self._send(m.Give(credit, versions), ())

    def hello(self) -> tuple[m.HeldLease, ...]:
        """A session begins: nothing was given in it yet."""
        self._given = ()
        return self.pull.hello()

    def granted(self, grant: m.Grant, frames: Sequence[Buffer], versions: tuple[int, ...]) -> None:
        states = states_by_fence(grant, frames)
        for lease in self.pull.granted(grant.leases):
            request = lease.request
            try:
                if request.policy_version not in versions:
                    raise SpotlightError(
                        f"version {request.policy_version} asked for, the trainer has {versions}"
                    )
                self._running[request.request_id] = self._sampler.start(
                    request, states[lease.fence]
                )
                self._gpu_s[request.request_id] = 0.0
            except SpotlightError as error:
                self._fail(request.request_id, str(error))

    def withdrawn(self, held: Sequence[m.HeldLease]) -> None:
        """The daemon wants these no more: stop, and say what they cost."""
        dropped = self.pull.withdrawn(held)
        self._hand_back(dropped)

    def hand_back_all(self) -> None:
        """Give up what is running, because an update begins."""
        held = [m.HeldLease(r, lease.fence) for r, lease in self.pull.held.items()]
        self._hand_back(self.pull.withdrawn(held))

    def _hand_back(self, held: Sequence[m.HeldLease]) -> None:
        spent = 0.0
        for lease in held:
            self._running.pop(lease.request_id, None)
            self._finished.pop(lease.request_id, None)
            spent += self._gpu_s.pop(lease.request_id, 0.0)
        if held:
            self._send(m.HandBack(tuple(held), spent), ())

    def step(self) -> None:
        """Take one denoising step of what runs on the live weights, or else on their average."""
        running = list(self._running.values())
        batch = [t for t in running if t.request.policy_version < AVERAGES_FROM] or running
        began = time.monotonic()
        try:
            self._select(batch[0].request.policy_version >= AVERAGES_FROM)
            self._sampler.advance(batch)
            done = [t for t in batch if t.done]
            images = self._sampler.decode(done) if done else []
        except (FloatingPointError, RuntimeError) as error:
            for trajectory in batch:
                self._fail(trajectory.request.request_id, str(error))
            return
        share = (time.monotonic() - began) / len(batch)
        for trajectory in batch:
            self._gpu_s[trajectory.request.request_id] += share
        for trajectory, image in zip(done, images, strict=True):
            request_id = trajectory.request.request_id
            del self._running[request_id]
            self._finished[request_id] = (trajectory, encode_png(image))
            self.pull.sampled(request_id)
        self.score()

    def score(self) -> None:
        """Hand finished images to the scorer, unless it is busy."""
        waiting = [r for r in self._finished if r not in self._scoring][:SCORER_BATCH]
        if not waiting or self._scoring:
            return
        self._scoring = set(waiting)
        images = [self._finished[r][1] for r in waiting]
        items = tuple(
            ScoreItem(r, request.target, request.prompt)
            for r in waiting
            for request in [self._finished[r][0].request]
        )
        specs = tuple(m.FrameSpec("image", len(image)) for image in images)
        self.scorer.send(Score(items, self._rewards, specs, self._reward_options), images)

    def scored(self) -> None:
        """Take one answer of the scorer; call when it has one."""
        received = self.scorer.receive(0)
        if received is None:
            return
        message, _ = received
        if isinstance(message, Fatal):
            raise SpotlightError(f"the trainer's scorer cannot go on: {message.reason}")
        assert isinstance(message, Scores)
        self._scoring = set()
        for item in message.items:
            self._report(item, message.version)
        self.score()

    def _report(self, item: Scored, scorer: str) -> None:
        finished = self._finished.pop(item.request_id, None)
        lease = self.pull.held.get(item.request_id)
        if finished is None or lease is None:
            return
        if item.error:
            self._fail(item.request_id, f"scorer: {item.error}")
            return
        trajectory, image = finished
        frames: dict[str, Buffer] = {"image": image}
        if trajectory.request.kind == "rollout":
            frames = {"trajectory": encode_trajectory(trajectory), "image": image}
        result = m.Result(
            item.request_id,
            lease.fence,
            item.scores,
            item.text,
            self._gpu_s.pop(item.request_id, 0.0),
            lease.resume_step,
            frame_specs(**frames),
            scorer,
        )
        self._finish(result, list(frames.values()))

    def _fail(self, request_id: str, reason: str) -> None:
        self._running.pop(request_id, None)
        lease = self.pull.held.get(request_id)
        if lease is not None:
            spent = self._gpu_s.pop(request_id, 0.0)
            self._finish(m.Failed(request_id, lease.fence, reason[:2000], False, spent), ())

    def _finish(self, message: m.Result | m.Failed, frames: Sequence[Buffer]) -> None:
        if self.pull.finished(message, frames, time.monotonic()):
            self._send(message, frames)

    def resend(self, everything: bool = False) -> None:
        """Send reports again that were not acknowledged in time, or all of them."""
        now = time.monotonic()
        for report in self.pull.resend(now) if everything else self.pull.due(now):
            self._send(report.message, report.frames)

    def close(self) -> None:
        try:
            self.scorer.send(Exit())
        except EOFError:
            logger.debug("the scorer is gone already")
        self.scorer.close()
        self._process.wait()
