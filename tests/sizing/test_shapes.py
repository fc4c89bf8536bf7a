"""Sizes of published models against diffusers' own classes, and of folders against their files."""

import diffusers as d
import pytest
import torch

from spotlightd.errors import InputError
from spotlightd.sizing.shapes import CONFIGS, PUBLISHED, find_size, token_parameters
from tests.dit.tiny_pipelines import save

WAN = ("Wan2.1-T2V-1.3B", "Wan2.1-T2V-14B")


def count(kind, config, **changes):
    with torch.device("meta"):
        return stored(kind(**(config | changes)))


def stored(model):
    return sum(tensor.numel() for tensor in model.state_dict().values())


def grown(kind, config, small, **steps):
    """Count a large model from small ones: each key's blocks are all alike.

    Args:
        small: the smallest model's values.
        steps: per key, how many blocks the large model has more than the smallest.
    """
    least = count(kind, config, **small)
    total = least
    for key, more in steps.items():
        total += more * (count(kind, config, **small | {key: small[key] + 1}) - least)
    return total


def test_qwen_image_has_its_published_count():
    config = CONFIGS["Qwen-Image"]
    total = grown(d.QwenImageTransformer2DModel, config, {"num_layers": 1}, num_layers=59)
    assert total == PUBLISHED["Qwen-Image"].transformer


def test_flux_has_its_published_count():
    config = CONFIGS["FLUX.1-dev"]
    small = {"num_layers": 1, "num_single_layers": 1}
    total = grown(d.FluxTransformer2DModel, config, small, num_layers=18, num_single_layers=37)
    assert total == PUBLISHED["FLUX.1-dev"].transformer


@pytest.mark.parametrize("name", WAN)
def test_wan_has_its_published_count(name):
    config = CONFIGS[name] | {"patch_size": (1, 2, 2)}
    more = config["num_layers"] - 1
    total = grown(d.WanTransformer3DModel, config, {"num_layers": 1}, num_layers=more)
    assert total == PUBLISHED[name].transformer


def test_stable_diffusion_has_its_published_count():
    config = CONFIGS["stable-diffusion-3.5-medium"]
    plain, dual = ({"num_layers": 3, "dual_attention_layers": layers} for layers in ((), (0,)))
    kind = d.SD3Transformer2DModel
    least = count(kind, config, **plain)
    a_block = least - count(kind, config, **plain | {"num_layers": 2})
    total = least + 21 * a_block + 13 * (count(kind, config, **dual) - least)
    assert total == PUBLISHED["stable-diffusion-3.5-medium"].transformer


def test_token_weights_are_a_third_of_qwen_images():
    """The modulations, a third, run once a sample; text has the other third."""
    size = PUBLISHED["Qwen-Image"]
    assert token_parameters(size) == 60 * 12 * 3072**2
    assert 0.32 < token_parameters(size) / size.transformer < 0.34


@pytest.mark.parametrize("name", ["sd3", "wan"])
def test_a_folder_is_measured_by_its_files(tmp_path, name):
    folder = save(name, tmp_path / "tiny")
    pipe = d.DiffusionPipeline.from_pretrained(folder, local_files_only=True)
    size = find_size(str(folder))
    assert size.transformer == stored(pipe.transformer) and size.vae == stored(pipe.vae)
    # Parameters, because tied weights are stored once; a few buffers come on top.
    encoders = [m for part, m in pipe.components.items() if part.startswith("text_encoder")]
    expected = sum(p.numel() for model in encoders for p in model.parameters())
    assert size.encoders == pytest.approx(expected, rel=0.01) and "tiny" in size.source


def test_the_embedded_model_is_measured_too():
    size = find_size("glyph-ocr")
    assert 2.4e6 < size.transformer < 2.6e6 and size.config["num_layers"] == 4


@pytest.mark.parametrize("name", ["/models/Qwen-Image", "FLUX.1-dev", "x/Wan2.1-T2V-14B-Diffusers"])
def test_a_model_that_is_not_here_is_known_by_its_name(name):
    assert find_size(name).source == "published sizes"


def test_a_model_that_nobody_knows_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no model at '/models/own'.*Qwen-Image"):
        find_size("/models/own")
    (tmp_path / "model_index.json").write_text("{}")
    with pytest.raises(InputError, match="is not a model folder"):
        find_size(str(tmp_path))
