"""The start-up self-check: printed, and a trainer that fails it does not start.

What it can see before the first rollout arrives; each update then checks every producer's ratio
and noise again (`ratio_check.py`), before anything changes.
"""

import logging
from pathlib import Path
from typing import NamedTuple

import torch
from msgspec import structs

from spotlightd.atomic import digest_of
from spotlightd.config import Config
from spotlightd.dit.lora import policy_parameters, read_adapter
from spotlightd.dit.models import DiffusionModel
from spotlightd.dit.noise import Stream, standard_normal
from spotlightd.dit.sampler import Sampler
from spotlightd.dit.trajectory import Trajectory
from spotlightd.errors import InputError
from spotlightd.planner.seeds import derive_seed
from spotlightd.prompts import load_prompts
from spotlightd.trainer.actions import Actions
from spotlightd.trainer.batch import WindowBatch
from spotlightd.trainer.clip import describe_clip_range
from spotlightd.trainer.crew import Crew
from spotlightd.trainer.memory import estimate, free_bytes
from spotlightd.trainer.micro_batches import deal
from spotlightd.trainer.objectives import PolicyGradient
from spotlightd.trainer.ranks import Ranks
from spotlightd.trainer.ratio_check import NOISE_ELEMENTS, WARN_AT, RatioCheck, too_close
from spotlightd.trainer.settings import TrainerSettings
from spotlightd.trainer.sharding import whole_tensors
from spotlightd.wire.sampling import Request, SamplerSettings

logger = logging.getLogger(__name__)

TINY_CLIP_RANGE = 1e-5
MEBI = 2**20


class Finding(NamedTuple):
    """One line of the report."""

    passed: bool
    text: str


def self_check(crew: Crew, config: Config) -> None:
    """Print what was checked. Raises InputError with everything that failed."""
    request = _probe(crew.model, config)
    findings = [
        _clip_range(crew, config),
        _ratio(crew, request),
        _noise(config, request.prompt_id),
        _memory(crew, request.prompt),
    ]
    for finding in findings:
        logger.info("self-check %s: %s", "ok" if finding.passed else "FAILED", finding.text)
    failed = [finding.text for finding in findings if not finding.passed]
    if failed:
        raise InputError(f"the trainer's self-check failed: {'; '.join(failed)}")


def check_equal_weights(model: DiffusionModel, ranks: Ranks) -> None:
    """Before weights are sharded, every rank must have loaded the same. Raises InputError.

    Shards of different models would make a model that nobody has.
    """
    trained = {id(p) for p in policy_parameters(model).values()}
    sums = []
    for _, parameter in sorted(model.transformer.named_parameters()):
        values = parameter.detach()
        if id(parameter) in trained:
            sums.append(digest_of(values.cpu().contiguous().view(torch.uint8).numpy().data))
        else:
            # A digest of every weight of a large model would take minutes.
            sums.append(float(values.sum(dtype=torch.float64)).hex())
    digests = ranks.collect(bytes.fromhex(digest_of("".join(sums).encode())))
    different = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if different:
        raise InputError(
            f"ranks {different} loaded other weights than rank 0: is the model folder the same on "
            f"every node?"
        )


def check_policy_file(actions: Actions, settings: TrainerSettings, version: int) -> None:
    """What the fleet will bind must be what trains, bit for bit; all ranks call it.

    Raises InputError.
    """
    held = whole_tensors(actions.policy.parameters)
    if not actions.ranks.leads:
        return
    path = Path(settings.state_dir) / "weights" / str(version) / "adapter.safetensors"
    stored = read_adapter(path)
    dtype = actions.policy.compute_dtype
    different = [
        name
        for name, tensor in held.items()
        if name not in stored or not torch.equal(stored[name], tensor.to(dtype or tensor.dtype))
    ]
    if different or stored.keys() != held.keys():
        raise InputError(
            f"{path} is not the policy that trains: {len(different)} of {len(held)} tensors "
            f"differ, such as {min(different, default='-')}"
        )
    logger.info(
        "self-check ok: version %d is %d tensors, bound and on disk alike, digest %s",
        version,
        len(held),
        digest_of(path.read_bytes())[:16],
    )


def _probe(model: DiffusionModel, config: Config) -> Request:
    """Return a rollout as the run will ask for it, cut off after its window."""
    sampler = config.sampler
    tokens, _ = model.latent_shape(sampler.height, sampler.width, sampler.num_frames)
    sigmas = model.sigmas(sampler.num_steps, tokens)
    first = min(sampler.sde_window_starts)
    window = tuple(range(first, first + sampler.sde_window_size))
    settings = SamplerSettings(
        sigmas[: window[-1] + 2],
        sampler.sde_form,
        sampler.noise_level,
        window,
        sampler.guidance_scale,
        sampler.height,
        sampler.width,
        sampler.num_frames,
    )
    prompt = load_prompts(config.run.prompts)[0]
    return Request(
        "self-check", "rollout", 0, prompt.prompt_id, prompt.text, prompt.target, 1, 0, settings
    )


def _clip_range(crew: Crew, config: Config) -> Finding:
    tokens, channels = crew.actions.latent_shape
    clip_range, sampler = crew.policy.clip_range, config.sampler
    text = describe_clip_range(clip_range, tokens * channels, sampler.sde_form)
    if sampler.guidance_scale > 1 and clip_range <= TINY_CLIP_RANGE:
        text += (
            f"; with guidance {sampler.guidance_scale:g} differences of 5e-4 between worker and "
            f"trainer are common, so this range clips noise: raise it, or set guidance to 1"
        )
    return Finding(True, text)


def _ratio(crew: Crew, request: Request) -> Finding:
    """Rollouts sampled alone and together, judged as training will: all in one batch."""
    sampler = Sampler(crew.model)
    requests = [structs.replace(request, request_id=f"self-check-{i}", seed=i) for i in range(3)]
    trajectories = [sampler.start(r) for r in requests]
    for running in (trajectories[:1], trajectories[1:]):
        while not running[0].done:
            sampler.advance(running)
    batch = _batch_of(trajectories)
    window = PolicyGradient(sampler, crew.policy.section, crew.policy.clip_range)
    check = RatioCheck(batch)
    with torch.no_grad():
        for pairs in deal(torch.arange(len(batch)), batch.window, len(batch), 0, 1):
            check.observe(pairs, window.predict(batch, pairs))
    mean, limit = check.mean(), crew.policy.clip_range
    text = (
        f"log-probs of rollouts sampled alone and together differ by {mean:.2g} on average from "
        f"those of one training batch, clip range {limit:.2g}"
    )
    if WARN_AT * limit < mean <= limit:
        text += ": more than a tenth of it, so expect a noisy gradient"
    return Finding(mean <= limit, text)


def _batch_of(trajectories: list[Trajectory]) -> WindowBatch:
    settings = trajectories[0].request.sampler
    rows = len(trajectories)
    steps = torch.tensor([settings.sde_window] * rows)
    sigmas = torch.tensor([settings.sigmas] * rows, dtype=torch.float32)
    return WindowBatch(
        torch.stack([torch.stack(t.window_latents) for t in trajectories]),
        torch.stack([torch.stack(t.window_next_latents) for t in trajectories]),
        torch.tensor([t.window_log_probs for t in trajectories], dtype=torch.float32),
        sigmas.gather(1, steps),
        sigmas.gather(1, steps + 1),
        steps,
        torch.stack([t.latents_LD for t in trajectories]),
        torch.zeros(rows),
        torch.zeros(rows, dtype=torch.int64),
        [t.request.request_id for t in trajectories],
        [t.request.prompt for t in trajectories],
        ["self-check"] * rows,
        settings,
        0,
    )


def _noise(config: Config, prompt_id: str) -> Finding:
    size = config.planner.group_size
    seeds = [derive_seed(config.run.seed, 0, prompt_id, index) for index in range(size)]
    pairs = 0
    for stream in (Stream.INITIAL, Stream.SDE):
        noise = [standard_normal(seed, 0, stream, (NOISE_ELEMENTS,)) for seed in seeds]
        pairs += len(too_close(torch.stack(noise)))
    return Finding(pairs == 0, f"{pairs} pairs of a group's {size} seeds share their noise")


def _memory(crew: Crew, prompt: str) -> Finding:
    tokens, _ = crew.actions.latent_shape
    text_tokens = crew.model.encode_prompts([prompt]).embeds_BTC.shape[1]
    device = crew.policy.ranks.device
    need, free = estimate(crew.policy, tokens + text_tokens), free_bytes(device)
    parts = ", ".join(f"{name} {value // MEBI}" for name, value in need._asdict().items())
    return Finding(
        need.total <= free,
        f"an update needs about {need.total // MEBI} MiB more per rank ({parts}) and "
        f"{free // MEBI} MiB are free on {device}"
        + ("" if need.total <= free else ": lower trainer.micro_batch, or set "
           "trainer.activation_checkpointing"),
    )  # fmt: skip
