"""What a simulated run came to."""

import msgspec
from msgspec import Struct


class Usage(Struct):
    """GPU-seconds of one kind of GPU, by what they went into; the sum is what is paid for."""

    useful: float = 0.0
    wasted: float = 0.0
    loading: float = 0.0
    idle: float = 0.0
    boot: float = 0.0
    """Held before the agent ran."""
    cost: float = 0.0

    @property
    def held(self) -> float:
        return self.useful + self.wasted + self.loading + self.idle + self.boot

    @property
    def idle_share(self) -> float:
        return self.idle / self.held if self.held else 0.0


class Outcome(Struct):
    """Times in seconds; money in the configuration's currency."""

    variant: str
    seed: int
    reached: bool
    """The target score was reached; otherwise time and cost are those of the whole run."""
    time_s: float
    iterations: int
    level: float
    """Held-out score at the end (modelled)."""
    reserved: Usage
    spot: Usage
    preemptions: int
    silent: int
    """Of these, without a notice."""
    lost_gpu_s: float
    """Denoised for trajectories and never committed, for a VM was taken away."""
    resumed: int
    """Leases that went on from a commit."""
    recovery_s: tuple[float, ...]
    """From the loss of a VM until a worker goes on with each rollout that it was denoising."""
    explored: int
    """Candidates scored."""
    variance_ratio: float
    """Variance of what trains over that of random seeds, mean over iterations."""
    train_s: float
    rollout_s: float
    """Mean length of a phase."""
    events: int
    digest: str
    """Of everything that was decided, in order."""

    @property
    def cost(self) -> float:
        return self.reserved.cost + self.spot.cost

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()
