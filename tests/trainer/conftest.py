"""A policy on the embedded model with a handful of sampled trajectories."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from spotlightd.config import load
from spotlightd.dit.sampler import Sampler
from spotlightd.dit.trajectory import encode_trajectory
from spotlightd.models import EMBEDDED_DIR
from spotlightd.store.blobs import Blobs
from spotlightd.trainer.batch import WindowBatch, load_batch
from spotlightd.trainer.main import build_policy
from spotlightd.trainer.policy import Policy
from spotlightd.trainer.settings import TrainerSettings
from spotlightd.wire.sampling import Request, SamplerSettings, SdeForm
from spotlightd.wire.training import Train, TrainGroup, TrainSample

SHAPE = (16, 64)


def make_policy(state_dir: Path, **flags: str) -> Policy:
    config, _ = load(None, {"store.state_dir": f'"{state_dir}"', **flags}, {})
    return build_policy(TrainerSettings(config, str(state_dir), str(EMBEDDED_DIR), "", "", "", -1))


@dataclass
class Rolled:
    """Rollouts of a policy, as the daemon would hand them to the trainer."""

    policy: Policy
    blobs: Blobs
    sde_form: SdeForm = "flow_cps"

    def message(self, rewards: list[list[float]], batch_size: int = 3) -> Train:
        """Sample one group per list of rewards and store the trajectories."""
        groups = []
        for number, values in enumerate(rewards):
            settings = SamplerSettings(
                self.policy.model.sigmas(6), self.sde_form, 0.7, (number % 2, 2), 1.0, 32, 128
            )
            requests = [
                Request(
                    f"r{number}-{i}", "rollout", 0, f"p{number}", f'a sign "W{number}"',
                    f"W{number}", 1000 * number + i, 0, settings,
                )
                for i in range(len(values))
            ]  # fmt: skip
            samples = tuple(
                TrainSample(r.request_id, r.seed, value, blob, f"agent-{i % 2}", False)
                for i, (r, value, blob) in enumerate(
                    zip(requests, values, self._sample(requests, batch_size), strict=True)
                )
            )
            groups.append(TrainGroup(f"p{number}", requests[0], samples))
        return Train(0, 0, tuple(groups))

    def _sample(self, requests: list[Request], batch_size: int) -> list[str]:
        sampler = Sampler(self.policy.model)
        blobs: list[bytes] = []
        for start in range(0, len(requests), batch_size):
            running = [sampler.start(r) for r in requests[start : start + batch_size]]
            while not running[0].done:
                sampler.advance(running)
            blobs += [encode_trajectory(t) for t in running]
        return self.blobs.put_many(blobs)

    def batch(self, rewards: list[list[float]]) -> WindowBatch:
        batch = load_batch(self.message(rewards), self.blobs, SHAPE, 5.0, False)
        assert batch is not None
        return batch


@pytest.fixture
def rolled(tmp_path):
    return Rolled(make_policy(tmp_path), Blobs(tmp_path / "blobs"))
