"""The plan that `spotlightd check` prints, with every assumption behind its figures."""

from collections.abc import Iterator

from spotlightd.config import Config
from spotlightd.sections import PlannerSection
from spotlightd.sizing.estimate import (
    ACTIVATIONS_KEPT,
    RESERVE,
    UTILISATION,
    VAE_BYTES_A_PIXEL,
    Estimate,
    Gpu,
)
from spotlightd.sizing.shapes import ModelSize

Line = tuple[str, str]

LATENT_CHANNELS = 16
NATS_SMALL, NATS_LARGE = 0.1, 30.0
"""Public recipes clip at 0.6 to 7 nats; far outside, a run stalls or is not clipped at all."""


def plan_lines(
    config: Config, size: ModelSize, gpu: Gpu, needed: Estimate, reserved: int, spot: int
) -> list[Line]:
    """Return (label, value) of the plan."""
    planner, ledger = config.planner, config.ledger
    rollouts = planner.prompts_per_iteration * planner.group_size
    sampler = config.sampler
    size_text = f"{sampler.height} x {sampler.width}" + (
        f" x {sampler.num_frames} frames" if sampler.num_frames > 1 else ""
    )
    hourly = reserved * ledger.reserved_price + spot * ledger.spot_price
    cost = hourly * needed.iteration_s / 3600
    recomputed = ", activations recomputed" if needed.recomputed else ""
    return [
        ("model", f"{size.name}: {_billions(size.transformer)} transformer, "
         f"{_billions(size.encoders)} text encoders, {_billions(size.vae)} VAE"),
        ("sample", f"{size_text}, {needed.tokens} tokens, {sampler.num_steps} steps, "
         f"{_guidance(config, needed)}"),
        ("iteration", f"{rollouts} rollouts ({planner.prompts_per_iteration} prompts x "
         f"{planner.group_size}), {_share(planner)}{sampler.sde_window_size} trained steps each"),
        ("GPUs needed", f"{needed.trainer_gpus} reserved to train{_verdict(needed.trainer_fits)}; "
         f"spot GPUs hold a model each{_verdict(needed.worker_fits)}"),
        ("GPUs planned", f"{reserved} reserved, {spot} spot, {gpu.name} with {gpu.memory_gb:g} GB"),
        ("memory to train", f"{needed.trainer_bytes / 1e9:.1f} GB a GPU{recomputed}"),
        ("memory to sample", f"{needed.worker_bytes / 1e9:.1f} GB a GPU"),
        ("time", f"{_seconds(needed.iteration_s)} an iteration: {_seconds(needed.rollout_s)} "
         f"rollouts, {_seconds(needed.train_s)} training"),
        ("cost", f"{cost:.4g} {ledger.currency} an iteration, "
         f"{cost * config.run.iterations:.4g} for {config.run.iterations}"),
        *_advice(planner, needed),
    ]  # fmt: skip


def _advice(planner: PlannerSection, needed: Estimate) -> Iterator[Line]:
    """Where training is most of an iteration, say what shortens it."""
    few = planner.group_size // 4
    if planner.train_size or few < 2 or needed.train_s <= needed.rollout_s:
        return
    train_s = needed.train_s * few / planner.group_size
    yield (
        "to be faster",
        f"planner.train_size = {few} trains the most contrasting {few} of "
        f"{planner.group_size}: {_seconds(needed.rollout_s + train_s)} an iteration "
        f"(docs/planner.md)",
    )


def _share(planner: PlannerSection) -> str:
    """Say how many of a group train, where not all of them do."""
    return f"of which {planner.train_size} a prompt train, " if planner.train_size else ""


def assumptions(config: Config, size: ModelSize, gpu: Gpu) -> list[str]:
    ledger = config.ledger
    return [
        f"parameters as in {size.source}; {config.trainer.dtype} throughout, LoRA rank "
        f"{config.trainer.lora_rank}",
        f"{size.text_tokens} text tokens a prompt",
        f"{UTILISATION:.0%} of {gpu.name}'s peak ({gpu.teraflops_16:g} TFLOP/s in 16 bits, "
        f"{gpu.teraflops_32:g} in 32)",
        f"{RESERVE:.0%} of a GPU's memory can be used",
        f"{ACTIVATIONS_KEPT} bytes a token, channel and block are kept for the backward pass in 16 "
        f"bits, 2 where they are recomputed; micro-batches of {config.trainer.micro_batch}",
        f"a VAE takes {VAE_BYTES_A_PIXEL} bytes a pixel, one image at a time",
        "weights are sharded over the training GPUs; text encoders and VAE stay on every GPU",
        "reserved GPUs "
        + ("sample between updates" if config.run.trainer_rolls_out else "only train")
        + "; exploration runs while they train and takes no time of its own",
        "scoring, decoding, weight transfer and preemptions take no time",
        f"{ledger.reserved_price:g} {ledger.currency} a reserved and {ledger.spot_price:g} a spot "
        f"GPU-hour",
    ]


def warnings(config: Config, needed: Estimate) -> list[str]:
    """What public recipes stumbled over, where this configuration has it."""
    said = []
    trainer, sampler = config.trainer, config.sampler
    if trainer.kl_beta == 0:
        said.append("trainer.kl_beta is 0: nothing holds the policy, and rewards get hacked; watch "
                    "a reward in rewards.report that does not train")  # fmt: skip
    if needed.branches == 2 and (trainer.clip_range or 1.0) <= 2e-5:
        said.append("guidance with a clip range of 2e-5 or less collapsed in public reports: raise "
                    "trainer.clip_range, or train with sampler.guidance_scale = 1")  # fmt: skip
    elements = needed.tokens * LATENT_CHANNELS * 4
    nats = trainer.clip_range_nats
    if sampler.sde_form != "flow_cps" and trainer.clip_range is not None:
        nats = trainer.clip_range * elements
    if nats is not None and not NATS_SMALL <= nats <= NATS_LARGE:
        said.append(f"the clip range is {nats:.3g} nats of the whole latent ({elements} elements); "
                    f"public recipes have 0.6 to 7")  # fmt: skip
    if not (needed.worker_fits and needed.trainer_fits):
        said.append("it does not fit: choose larger GPUs, a smaller trainer.micro_batch or "
                    "trainer.max_batch, or fewer pixels")  # fmt: skip
    return said


def _guidance(config: Config, needed: Estimate) -> str:
    scale = config.sampler.guidance_scale
    if needed.branches == 2:
        return f"guidance {scale:g} (two forwards a step)"
    return f"guidance {scale:g} as an input" if scale != 1 else "no guidance"


def _verdict(fits: bool) -> str:
    return "" if fits else " (DOES NOT FIT)"


def _billions(count: int) -> str:
    return f"{count / 1e9:.3g} B" if count >= 1e8 else f"{count / 1e6:.3g} M"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 600 else f"{seconds / 60:.3g} min"
