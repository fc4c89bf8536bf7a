"""A real run of training in which only the clock and the fleet are virtual.

Model, sampler, scorer, trainer, iteration machine and planner are the daemon's own; every image
is drawn, scored and trained on. One process does it all, so nothing can overlap: instead, each
thing takes as long on the virtual clock as it took alone on one core (`Hardware`), and spot GPUs
work beside the reserved one. Evaluation takes no virtual time.
"""

import heapq
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spotlightd.config import Config, load
from spotlightd.dit.sampler import Sampler
from spotlightd.dit.trajectory import encode_trajectory
from spotlightd.models import EMBEDDED_DIR
from spotlightd.planner.cycle import Cycle
from spotlightd.planner.decisions import (
    AddRequests,
    Decision,
    PhaseBegins,
    Planned,
    Record,
    StartTraining,
    StopRequests,
)
from spotlightd.planner.plan import CyclePlan
from spotlightd.planner.seeds import keyed_hash
from spotlightd.planner.spots import Spot, Spots
from spotlightd.planner.timing import Moment
from spotlightd.planner.training import CommittedResult
from spotlightd.prompts import load_prompts
from spotlightd.rewards.scoring import Scorer
from spotlightd.store.blobs import Blobs
from spotlightd.trainer.batch import load_batch
from spotlightd.trainer.main import build_policy
from spotlightd.trainer.settings import TrainerSettings
from spotlightd.trainer.update import train_on
from spotlightd.wire.sampling import Request
from spotlightd.wire.training import Train, Trained

CPU_BATCH = 32


@dataclass(frozen=True)
class Hardware:
    """How long things take, as measured alone on one core with the embedded model."""

    spot_gpus: int = 2
    step_s: float = 0.0014
    """One denoising step of one trajectory."""
    decode_s: float = 0.0016
    reward_s: float = 0.05
    """Delay of a batch's rewards, which VMs compute on their CPU beside the next batch."""
    train_s: float = 0.0245
    """One rollout's share of an update (1.57 s on four groups of sixteen)."""
    train_spread: float = 0.03
    batch: int = 8

    def cost_s(self, request: Request) -> float:
        return request.sampler.num_steps * self.step_s + self.decode_s


class VirtualRun:
    """Runs one configuration to its end."""

    def __init__(self, flags: dict[str, str], hardware: Hardware) -> None:
        self._folder = tempfile.TemporaryDirectory()
        flags = flags | {"store.state_dir": f'"{self._folder.name}"'}
        self.config: Config = load(None, flags, {})[0]
        self.hardware = hardware
        self.now = 0.0
        self.metrics: dict[int, dict[str, float]] = {}
        self.clock: dict[int, float] = {}
        """Virtual seconds at which each version existed."""
        self.reasons: list[str] = []
        settings = TrainerSettings(
            self.config, self._folder.name, str(EMBEDDED_DIR), "", "", "", -1
        )
        self.policy = build_policy(settings)
        self._sampler = Sampler(self.policy.model)
        names = (self.config.rewards.train, *self.config.rewards.report)
        self._scorer = Scorer(names)
        self._blobs = Blobs(Path(self._folder.name) / "blobs")
        self._noise = random.Random(self.config.run.seed)
        sampler = self.config.sampler
        self._shape = self.policy.model.latent_shape(
            sampler.height, sampler.width, sampler.num_frames
        )
        sigmas = self.policy.model.sigmas(sampler.num_steps, self._shape[0])
        prompts, held_out = load_prompts(self.config.run.prompts), load_prompts("held_out")
        self.cycle = Cycle(CyclePlan(self.config, sigmas, prompts, held_out))
        spot = Spot(1, 2 * hardware.batch)
        self._spots = Spots({f"vm-{i}": spot for i in range(hardware.spot_gpus)})

    def run(self) -> None:
        self._look()
        decisions = self.cycle.trainer_ready(0)
        while decisions:
            decisions = self._act(decisions)
        self._folder.cleanup()

    def _look(self, fraction: float = 0.0) -> None:
        self.cycle.moment = Moment(self.now, self._spots, fraction)

    def _act(self, decisions: Sequence[Decision]) -> list[Decision]:
        requests: list[Request] = []
        train: Train | None = None
        for decision in decisions:
            match decision:
                case AddRequests():
                    requests += decision.requests
                case StartTraining():
                    train = decision.message
                case Record():
                    self.metrics.setdefault(decision.iteration, {}).update(decision.metrics)
                case Planned():
                    self.reasons.append(decision.reason)
                case PhaseBegins() | StopRequests():
                    pass
        if train is not None:
            return self._train(train, requests)
        return self._sample_all(requests)

    def _sample_all(self, requests: list[Request]) -> list[Decision]:
        """Evaluate, roll out, or explore before a rollout: all of it, then go on."""
        if not requests:
            return []
        gpus = self.hardware.spot_gpus + (requests[0].kind == "rollout")
        if requests[0].kind != "evaluate":
            self.now += sum(map(self.hardware.cost_s, requests)) / gpus + self.hardware.reward_s
        self._look()
        decisions: list[Decision] = []
        for result in self.sample(requests):
            decisions += self.cycle.committed(result)
        return decisions

    def sample(self, requests: Sequence[Request]) -> list[CommittedResult]:
        """Denoise and score for real, with the weights as they are."""
        results: list[CommittedResult] = []
        for start in range(0, len(requests), CPU_BATCH):
            batch = [self._sampler.start(r) for r in requests[start : start + CPU_BATCH]]
            while going := [t for t in batch if not t.done]:
                self._sampler.advance(going)
            images = self._sampler.decode(batch)
            outcomes = self._scorer.score(images, [t.request.target for t in batch])
            for trajectory, outcome in zip(batch, outcomes, strict=True):
                request = trajectory.request
                blob = None
                if request.kind == "rollout":
                    (blob,) = self._blobs.put_many([encode_trajectory(trajectory)])
                cost = self.hardware.cost_s(request)
                results.append(
                    CommittedResult(request.request_id, outcome.scores, blob, "vm", cost)
                )
        return results

    # --- training, with exploration beside it -------------------------------------------------

    def _train(self, message: Train, explorations: list[Request]) -> list[Decision]:
        rollouts = sum(len(group.samples) for group in message.groups)
        spread = 1 + self.hardware.train_spread * self._noise.gauss(0, 1)
        seconds = self.hardware.train_s * rollouts * spread
        ends = self.now + seconds
        self._explore(explorations, self.now, ends)
        section = self.config.trainer
        over_control = section.normalise_over == "control"
        batch = load_batch(
            message,
            self._blobs,
            self._shape,
            section.advantage_clip,
            section.global_std,
            over_control,
        )
        metrics = {"zero_std_groups": float(len(message.groups))}
        if batch is not None:
            seed = keyed_hash("update", self.config.run.seed, message.policy_version) >> 1
            metrics = train_on(self.policy, batch, seed, lambda _: None).metrics
        self.now = ends
        version = message.policy_version + 1
        self.clock[version] = self.now
        self.updated(version)
        self._look()
        return self.cycle.trained(
            Trained(message.iteration, version, metrics, (), self.policy.clip_range, seconds)
        )

    def updated(self, version: int) -> None:
        """The model holds this version now."""

    def _explore(self, queue: list[Request], began: float, ends: float) -> None:
        """Spot GPUs work in batches until training ends; the planner may add at every event."""
        events: list[tuple[float, int, str, list[CommittedResult]]] = []
        number, queue = 0, list(queue)
        idle = set(self._spots)
        for tick in range(int((ends - began) / 0.1) + 1):
            number += 1
            heapq.heappush(events, (began + tick * 0.1, number, "", []))
        while events and events[0][0] < ends:
            self.now, _, name, results = heapq.heappop(events)
            self._look((self.now - began) / (ends - began))
            decisions: list[Decision] = []
            if results:
                for result in results:
                    decisions += self.cycle.committed(result)
            elif name:
                idle.add(name)
            else:
                decisions += self.cycle.tick()
            for decision in decisions:
                queue += decision.requests if isinstance(decision, AddRequests) else []
            for gpu in sorted(idle):
                taken, queue = queue[: self.hardware.batch], queue[self.hardware.batch :]
                if not taken:
                    break
                idle.discard(gpu)
                done = self.now + sum(map(self.hardware.cost_s, taken))
                number += 2
                heapq.heappush(events, (done, number, gpu, []))
                # What cannot be scored in time is not drawn: nobody would see it.
                if done + self.hardware.reward_s < ends:
                    scored = self.sample(taken)
                    heapq.heappush(events, (done + self.hardware.reward_s, number + 1, gpu, scored))
