"""How long things take, from published timings. Legend: L image tokens."""

from functools import cached_property

from spotlightd.config import Config
from spotlightd.dit.degrees import Curve
from spotlightd.simulate.assumptions import Assumptions

PATCH = 16
"""Pixels of a token's side (VAE 8, patch 2)."""


def tokens_of(height: int, width: int) -> float:
    return height * width / PATCH**2


class Durations:
    """Seconds for one configuration, on a GPU of mean speed."""

    def __init__(self, config: Config, assumptions: Assumptions) -> None:
        self._config, self._given = config, assumptions
        (side, steps, seconds), (large, large_steps, large_seconds) = assumptions.denoise.timings
        few, many = tokens_of(side, side), tokens_of(large, large)
        low, high = seconds / steps / few, large_seconds / large_steps / many
        # Seconds per token rise evenly with the tokens: attention is quadratic.
        self._quadratic = (high - low) / (many - few)
        self._linear = low - self._quadratic * few

    def _step_s(self, tokens: float) -> float:
        return self._linear * tokens + self._quadratic * tokens**2

    @cached_property
    def step_s(self) -> float:
        """One denoising step of one image; without guidance it is one forward, not two."""
        sampler = self._config.sampler
        guided = 1.0 if sampler.guidance_scale > 1 else 0.5
        return guided * self._step_s(tokens_of(sampler.height, sampler.width))

    @cached_property
    def decode_s(self) -> float:
        sampler = self._config.sampler
        return self._given.decode.seconds_at_1024 * sampler.height * sampler.width / 1024**2

    @cached_property
    def train_gpu_s(self) -> float:
        """Reserved GPU-seconds that one trajectory costs to train on."""
        train, sampler = self._given.train, self._config.sampler
        published_step = self._step_s(tokens_of(train.side, train.side))
        rollout_s = train.images * train.denoise_steps * published_step / train.gpus
        gpu_s = max(train.step_s - rollout_s, 0.0) * train.gpus / train.images
        scale = self.step_s / published_step * sampler.sde_window_size / train.trained_steps
        return gpu_s * scale

    def train_s(self, images: int, gpus: int) -> float:
        return images * self.train_gpu_s / gpus

    def curve(self, workers: int) -> Curve:
        """Speedup by degree: the published overhead of each degree, in proportion to tokens."""
        given, sampler = self._given.sequence_parallel, self._config.sampler
        alone = dict(given.timings)[1] / given.steps
        share = tokens_of(sampler.height, sampler.width) / tokens_of(given.side, given.side)
        speedups = {1: 1.0}
        for degree, seconds in given.timings:
            if 1 < degree <= workers:
                overhead = (seconds / given.steps - alone / degree) * share
                speedups[degree] = self.step_s / (self.step_s / degree + overhead)
        return Curve.of(speedups)
