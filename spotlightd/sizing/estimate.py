"""Memory, time and money of one iteration: arithmetic on sizes, with every assumption a constant.

Legend: L image tokens, T text tokens, w width, B trajectories in a batch, g branches of guidance.
"""

import math
from dataclasses import dataclass

from spotlightd.config import Config
from spotlightd.sizing.shapes import ModelSize, blocks_of, token_parameters, width_of

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
UTILISATION = 0.4
"""Share of a GPU's peak arithmetic that the transformer reaches."""
ACTIVATIONS_KEPT = 34
"""Bytes a block keeps per token and channel for its backward pass in 16 bits, attention matrix not
stored (Korthikanti et al., arXiv 2205.05198, section 4.1)."""
ACTIVATIONS_FORWARD = 16
"""Bytes per token and channel that are alive at once in a forward pass in 16 bits."""
VAE_BYTES_A_PIXEL = 2500
"""Peak while one image or frame is decoded in 16 bits."""
RESERVE = 0.9
"""Share of a GPU's memory that may be planned with; the rest is the allocator's and CUDA's."""


@dataclass(frozen=True)
class Gpu:
    name: str
    memory_gb: float
    teraflops_16: float
    """Peak of dense 16-bit products."""
    teraflops_32: float


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("h200", 141, 989, 67),
        Gpu("h100", 80, 989, 67),
        Gpu("a100", 80, 312, 19.5),
        Gpu("l40s", 48, 362, 91.6),
        Gpu("4090", 24, 165, 82.6),
    )
}


@dataclass(frozen=True)
class Estimate:
    """Bytes, seconds and FLOPs; each per GPU unless it says otherwise."""

    tokens: int
    """L."""
    branches: int
    forward_flops: float
    """One forward of one trajectory."""
    worker_bytes: float
    """A GPU that samples."""
    trainer_bytes: float
    """Each of `trainer_gpus`, the weights sharded over them."""
    trainer_gpus: int
    """Fewest whose memory suffices."""
    recomputed: bool
    """Whether activations had to be recomputed in the backward pass to fit."""
    worker_fits: bool
    trainer_fits: bool
    rollout_s: float
    train_s: float

    @property
    def iteration_s(self) -> float:
        return self.rollout_s + self.train_s


def estimate(
    config: Config, size: ModelSize, gpu: Gpu, reserved: int | None, spot: int
) -> Estimate:
    """Return the estimate; `reserved` None: as many reserved GPUs as training needs."""
    tokens = image_tokens(config, size)
    branches = 2 if _is_guided(config, size) else 1
    flops = branches * _forward_flops(size, tokens)
    room = gpu.memory_gb * 1e9 * RESERVE
    worker = _worker_bytes(config, size, tokens, branches)
    gpus, trainer, recomputed = _fewest_gpus(config, size, tokens, branches, room)
    held = max(reserved or 0, gpus)
    rate = _rate(config, gpu)
    planner, trained = config.planner, config.sampler.sde_window_size
    rollouts = planner.prompts_per_iteration * planner.group_size
    train = planner.prompts_per_iteration * (planner.train_size or planner.group_size)
    sampling = rollouts * config.sampler.num_steps * flops
    rolls = held if config.run.trainer_rolls_out else 0
    return Estimate(
        tokens,
        branches,
        flops,
        worker,
        trainer,
        gpus,
        recomputed,
        worker <= room,
        trainer <= room,
        sampling / (rate * max(rolls + spot, 1)),
        train * trained * flops * _train_forwards(config, recomputed) / (rate * held),
    )


def image_tokens(config: Config, size: ModelSize) -> int:
    sampler = config.sampler
    frames = (sampler.num_frames - 1) // 4 + 1
    return frames * math.ceil(sampler.height / 16) * math.ceil(sampler.width / 16)


def _is_guided(config: Config, size: ModelSize) -> bool:
    return config.sampler.guidance_scale > 1 and size.pipeline != "FluxPipeline"


def _forward_flops(size: ModelSize, tokens: int) -> float:
    """Products of L + T tokens with the weights, and attention over all pairs (2 per product)."""
    blocks = blocks_of(size)
    joined = size.pipeline != "WanPipeline"
    length = tokens + size.text_tokens if joined else tokens
    seen = length if joined else tokens + size.text_tokens
    return 2 * token_parameters(size) * length + 4 * blocks * length * seen * width_of(size)


def _train_forwards(config: Config, recomputed: bool) -> float:
    """Forwards that a trained step costs: one and its backward (one more, as frozen weights get no
    gradient), the reference, the ratio check of all but the first optimizer step, recomputation."""
    check = 1 - 1 / config.trainer.optimizer_steps
    return 2 + (config.trainer.kl_beta > 0) + check + recomputed


def _rate(config: Config, gpu: Gpu) -> float:
    narrow = BYTES[config.trainer.dtype] == 2
    return (gpu.teraflops_16 if narrow else gpu.teraflops_32) * 1e12 * UTILISATION


def _held_bytes(config: Config, size: ModelSize) -> float:
    """Encoders and VAE: every process encodes its prompts and decodes its images."""
    return float((size.encoders + size.vae) * BYTES[config.trainer.dtype])


def _worker_bytes(config: Config, size: ModelSize, tokens: int, branches: int) -> float:
    width = BYTES[config.trainer.dtype]
    batch = config.trainer.max_batch * branches * (tokens + size.text_tokens)
    alive = batch * width_of(size) * ACTIVATIONS_FORWARD * width / 2
    decode = config.sampler.height * config.sampler.width * VAE_BYTES_A_PIXEL * width / 2
    weights = size.transformer * width + adapter_parameters(config, size) * width
    return weights + _held_bytes(config, size) + max(alive, decode)


def adapter_parameters(config: Config, size: ModelSize) -> float:
    """Rank times inputs and outputs of the layers with adapters: about 1 / w of the token weights
    on each side, for image and text."""
    streams = 1 if size.pipeline == "WanPipeline" else 2
    return 2 * config.trainer.lora_rank * streams * token_parameters(size) / width_of(size)


def _trainer_bytes(
    config: Config, size: ModelSize, tokens: int, branches: int, gpus: int, recomputed: bool
) -> float:
    width = BYTES[config.trainer.dtype]
    rows = config.trainer.micro_batch * branches * (tokens + size.text_tokens)
    blocks = blocks_of(size)
    row = rows * width_of(size) * width / 2
    kept = row * (2 * blocks + ACTIVATIONS_KEPT if recomputed else ACTIVATIONS_KEPT * blocks)
    sharded = size.transformer * width / gpus
    if gpus > 1:
        # One block's weights are gathered while it is computed, and the next one's ahead of it.
        sharded += 2 * size.transformer * width / blocks
    # The adapter, its gradient and AdamW's two moments.
    return sharded + adapter_parameters(config, size) * 4 * width + _held_bytes(config, size) + kept


def _fewest_gpus(
    config: Config, size: ModelSize, tokens: int, branches: int, room: float
) -> tuple[int, float, bool]:
    """Return (GPUs, bytes on each, whether activations are recomputed); where even eight with
    recomputation do not suffice, those are returned."""
    for gpus in (1, 2, 4, 8):
        for recomputed in (False, True):
            need = _trainer_bytes(config, size, tokens, branches, gpus, recomputed)
            if need <= room:
                return gpus, need, recomputed
    return 8, _trainer_bytes(config, size, tokens, branches, 8, True), True
