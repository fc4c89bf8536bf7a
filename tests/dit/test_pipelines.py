"""Each adapter against diffusers' own pipeline, on tiny random weights loaded from a folder."""

import itertools
import json
from functools import cache

import numpy as np
import pytest
import torch

from spotlightd.dit.lora import adapter_bytes, adapter_parameters, attach_lora
from spotlightd.dit.models import load_model
from spotlightd.dit.sampler import Sampler
from spotlightd.errors import InputError
from spotlightd.outputs.adapter_file import FILE_NAME, to_diffusers
from spotlightd.replay import sample_whole
from tests.dit.plain_pipelines import (
    FRAMES,
    HEIGHT,
    PROMPTS,
    WIDTH,
    call,
    initial_latents,
    plain_pipeline,
    requests,
    settings_of,
)
from tests.dit.ratio import log_prob_differences
from tests.dit.tiny_pipelines import BUILDERS, save

MODELS = sorted(BUILDERS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("pipelines")
    return cache(lambda name: save(name, root / name))


@pytest.fixture(scope="module")
def ours(folders):
    return cache(lambda name: load_model(folders(name)))


GUIDED = {"sd3": 4.5, "flux": 3.5, "qwen_image": 4.0, "wan": 5.0}
CASES = [(name, 1.0) for name in MODELS] + sorted(GUIDED.items())


@pytest.mark.parametrize(("name", "guidance"), CASES)
def test_the_ode_sampler_equals_the_pipelines_own_latents(folders, ours, name, guidance):
    model = ours(name)
    settings = settings_of(model, name, guidance)
    trajectories = sample_whole(Sampler(model), requests(settings))
    mine = torch.stack([t.latents_LD for t in trajectories])
    pipe = plain_pipeline(folders(name), name, settings.sigmas)
    theirs = call(pipe, name, initial_latents(model, name), guidance)
    assert mine.std() > 0.1
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", sorted(GUIDED))
def test_guidance_has_an_effect(ours, name):
    model = ours(name)
    latents, prompts = initial_latents(model, name), model.encode_prompts(PROMPTS)
    sigma = torch.tensor([0.9, 0.9])
    with torch.no_grad():
        plain, guided = (
            model.velocity(latents, sigma, prompts, settings_of(model, name, scale))
            for scale in (1.0, GUIDED[name])
        )
    assert (plain - guided).abs().max() > 1e-3


@pytest.mark.parametrize("name", MODELS)
def test_company_in_a_batch_changes_nothing(ours, name):
    """Packed batches once gave every request the first one's results."""
    model = ours(name)
    settings = settings_of(model, name, GUIDED.get(name, 1.0))
    together = sample_whole(Sampler(model), requests(settings))
    alone = [sample_whole(Sampler(model), [request])[0] for request in requests(settings)]
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a.latents_LD, b.latents_LD, atol=1e-5, rtol=0)
    assert (together[0].latents_LD - together[1].latents_LD).abs().max() > 0.1


@pytest.mark.parametrize("name", MODELS)
def test_noise_levels_are_the_schedulers_and_fall_from_one_to_zero(folders, ours, name):
    for steps in (2, 10, 28):
        sigmas = ours(name).sigmas(steps, 1024)
        assert len(sigmas) == steps + 1 and (sigmas[0], sigmas[-1]) == (1.0, 0.0)
        assert all(a > b for a, b in itertools.pairwise(sigmas))


def test_noise_levels_have_their_known_values(ours):
    """A release that shifts differently must not change a run unnoticed."""
    sd3 = [1, 0.960, 0.913, 0.858, 0.790, 0.707, 0.602, 0.465, 0.278, 0.0089, 0]
    assert ours("sd3").sigmas(10, 1024) == pytest.approx(sd3, abs=6e-4)
    mu = 0.5 + (0.9 - 0.5) * (1024 - 256) / (8192 - 256)
    shifted = [np.exp(mu) / (np.exp(mu) + 1 / s - 1) for s in (1.0, 0.75, 0.5, 0.25)]
    stretch = (1 - shifted[-1]) / (1 - 0.02)
    qwen = [1 - (1 - s) / stretch for s in shifted]
    assert ours("qwen_image").sigmas(4, 1024)[:-1] == pytest.approx(qwen, abs=1e-5)
    mu = 0.5 + (1.15 - 0.5) * (1024 - 256) / (4096 - 256)
    flux = [np.exp(mu) / (np.exp(mu) + 1 / s - 1) for s in (1.0, 0.75, 0.5, 0.25)]
    assert ours("flux").sigmas(4, 1024)[:-1] == pytest.approx(flux, abs=1e-5)
    wan = [3 * s / (1 + 2 * s) for s in np.linspace(1, 1e-3, 5)[:-1]]
    assert ours("wan").sigmas(4, 1024)[:-1] == pytest.approx(wan, abs=1e-5)


@pytest.mark.parametrize("name", ["sd3", "flux", "qwen_image", "wan"])
def test_decoded_pixels_equal_the_pipelines(folders, ours, name):
    model = ours(name)
    settings = settings_of(model, name)
    latents = initial_latents(model, name)
    pipe = plain_pipeline(folders(name), name, settings.sigmas)
    theirs = call(pipe, name, latents, 1.0, output="np")
    final = call(pipe, name, latents, 1.0)
    mine = model.pixels(final, HEIGHT, WIDTH)
    frames = (FRAMES,) if name == "wan" else ()
    assert mine.shape == (2, *frames, HEIGHT, WIDTH, 3)
    np.testing.assert_allclose(mine, theirs, atol=1e-4)
    assert np.array_equal(model.decode(final, HEIGHT, WIDTH), (mine * 255).round().astype("uint8"))


@pytest.mark.parametrize(
    ("name", "size", "says"),
    [
        ("sd3", (40, 32, 1), "needs multiples of 16"),
        ("flux", (32, 24, 1), "needs multiples of 16"),
        ("qwen_image", (32, 32, 5), "draws images"),
        ("wan", (32, 32, 4), r"1 \+ a multiple of 4"),
    ],
)
def test_sizes_that_a_model_cannot_do_get_a_sentence(ours, name, size, says):
    with pytest.raises(InputError, match=says):
        ours(name).latent_shape(*size)


@pytest.mark.parametrize("name", ["sd3", "flux", "qwen_image", "wan"])
def test_a_prompt_that_would_be_cut_off_is_refused(ours, name):
    with pytest.raises(InputError, match="tokens is too long"):
        ours(name).encode_prompts(["a" * 600])


def test_guidance_that_a_model_cannot_take_is_refused(ours):
    model = ours("schnell")
    settings = settings_of(model, "schnell", 3.5)
    with pytest.raises(InputError, match="takes no guidance"):
        model.velocity(
            initial_latents(model, "schnell"),
            torch.ones(2),
            model.encode_prompts(PROMPTS),
            settings,
        )


def test_a_damaged_folder_is_named(folders, tmp_path):
    index = json.loads((folders("sd3") / "model_index.json").read_text())
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="cannot load the StableDiffusion3Pipeline"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", sorted(GUIDED))
def test_the_exported_adapter_reproduces_our_images_in_a_plain_pipeline(folders, tmp_path, name):
    """With alpha unlike rank: a reader that does not learn alpha scales the adapter wrongly."""
    model = load_model(folders(name))
    settings = settings_of(model, name, GUIDED[name])
    base = sample_whole(Sampler(model), requests(settings))
    attach_lora(model, 4, 12.0)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in adapter_parameters(model).values():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    trained = sample_whole(Sampler(model), requests(settings))
    latents = torch.stack([t.latents_LD for t in trained])
    assert (latents - torch.stack([t.latents_LD for t in base])).abs().max() > 0.01
    (tmp_path / FILE_NAME).write_bytes(to_diffusers(adapter_bytes(model), 4, 12.0, "adapter"))
    pipe = plain_pipeline(folders(name), name, settings.sigmas)
    pipe.load_lora_weights(tmp_path)
    theirs = call(pipe, name, initial_latents(model, name), GUIDED[name], output="np")
    np.testing.assert_allclose(model.pixels(latents, HEIGHT, WIDTH), theirs, atol=1e-4)


UNREAD = {
    # Nobody reads the text after the last block.
    "sd3": ("transformer_blocks.1.attn.add_q_proj",),
    "qwen_image": ("transformer_blocks.1.txt_mlp", "transformer_blocks.1.attn.to_add_out",
                   "transformer_blocks.1.attn.add_q_proj"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(GUIDED))
def test_every_adapter_layer_gets_a_gradient(folders, name):
    """An adapter that binds to nothing leaves the reward flat, and looks like stale weights."""
    model = load_model(folders(name))
    attach_lora(model, 2, 4.0)
    parameters = adapter_parameters(model)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    settings = settings_of(model, name, GUIDED[name])
    prompts = model.encode_prompts(PROMPTS)
    velocity = model.velocity(
        initial_latents(model, name), torch.tensor([0.9, 0.3]), prompts, settings
    )
    assert velocity.dtype == torch.float32
    velocity.square().mean().backward()
    flat = {key for key, p in parameters.items() if p.grad is None or not p.grad.any()}
    assert {key for key in flat if not key.startswith(UNREAD.get(name, ("-",)))} == set()
    targets = {t for t in model.lora_targets if any(f".{t}." in f".{key}" for key in parameters)}
    assert targets == set(model.lora_targets)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("name", sorted(GUIDED))
def test_before_any_update_the_ratio_is_one(ours, name, batched):
    """A trainer in other batches than the worker's once began with ratios of 0.98."""
    model = ours(name)
    settings = settings_of(model, name, GUIDED[name], window=(0, 1))
    rolled = sample_whole(Sampler(model), requests(settings))
    groups = [rolled] if batched else [[trajectory] for trajectory in rolled]
    differences = [log_prob_differences(model, group) for group in groups]
    assert torch.cat(differences).mean() < 1e-5
