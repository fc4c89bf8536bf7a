"""diffusers' own pipelines, called from our initial latents, to compare with."""

import torch
from diffusers import DiffusionPipeline, FlowMatchEulerDiscreteScheduler

from spotlightd.dit.models.pipeline import pack, unpack
from spotlightd.dit.models.wan import pack_video, unpack_video
from spotlightd.dit.noise import Stream, standard_normal
from spotlightd.wire.sampling import Request, SamplerSettings

PROMPTS = ['A sign "OPEN".', "Two red cups, one of them on a table."]
HEIGHT, WIDTH, FRAMES, STEPS = 32, 48, 5, 3


def frames_of(name):
    return FRAMES if name == "wan" else 1


def settings_of(model, name, guidance=1.0, window=()):
    frames = frames_of(name)
    sigmas = model.sigmas(STEPS, model.latent_shape(HEIGHT, WIDTH, frames)[0])
    return SamplerSettings(sigmas, "flow_cps", 0.7, window, guidance, HEIGHT, WIDTH, frames)


def requests(settings):
    return [
        Request(f"r{seed}", "evaluate", 0, f"p{seed}", prompt, "", seed, 0, settings)
        for seed, prompt in enumerate(PROMPTS, start=1)
    ]


def initial_latents(model, name):
    shape = model.latent_shape(HEIGHT, WIDTH, frames_of(name))
    noise = [standard_normal(seed, 0, Stream.INITIAL, shape) for seed in (1, 2)]
    return torch.stack(noise)


def plain_pipeline(folder, name, sigmas):
    """diffusers' own pipeline; Wan's gets a single-step scheduler on the same noise levels."""
    pipe = DiffusionPipeline.from_pretrained(folder, local_files_only=True)
    pipe.set_progress_bar_config(disable=True)
    if name == "wan":
        pipe.scheduler = FlowMatchEulerDiscreteScheduler(shift=1.0)
        keep = torch.tensor(sigmas[:-1])
        set_timesteps = pipe.scheduler.set_timesteps
        pipe.scheduler.set_timesteps = lambda _, device=None: set_timesteps(
            sigmas=keep.tolist(), device=device
        )
    return pipe


def call(pipe, name, latents, guidance, output="latent"):
    """Run a plain pipeline from our packed latents; return packed latents, or pixels."""
    rows, columns = HEIGHT // 16, WIDTH // 16
    arguments = {"prompt": PROMPTS, "height": HEIGHT, "width": WIDTH, "latents": latents}
    arguments |= {"num_inference_steps": STEPS, "output_type": output, "guidance_scale": guidance}
    if name == "qwen_image":
        del arguments["guidance_scale"]
        arguments["true_cfg_scale"] = guidance
        arguments["negative_prompt"] = [" "] * len(PROMPTS) if guidance > 1 else None
    if name == "sd3":
        arguments["latents"] = unpack(latents, rows, columns)
    if name == "wan":
        arguments |= {"latents": unpack_video(latents, rows, columns), "num_frames": FRAMES}
    out = pipe(**arguments, return_dict=False)[0]
    if output != "latent":
        return out
    return pack(out) if name == "sd3" else pack_video(out) if name == "wan" else out
