"""Models at their real size with random weights: they fit one large GPU, sample and train."""

import pytest
import torch

from spotlightd.sizing.shapes import CONFIGS, PUBLISHED
from tests.dit.real_size import measure
from tests.dit.tiny_pipelines import qwen_image, sd3

REAL = {"sd3": "stable-diffusion-3.5-medium", "qwen_image": "Qwen-Image"}
GUIDANCE = {"sd3": 4.5, "qwen_image": 4.0}


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", sorted(REAL))
def test_a_real_size_model_samples_and_trains_in_bfloat16(name, capsys):
    size = PUBLISHED[REAL[name]]
    free, _ = torch.cuda.mem_get_info()
    needed = 3.5 * size.transformer
    if free < needed:
        pytest.skip(f"{free / 1e9:.0f} GB are free, {size.name} needs {needed / 1e9:.0f} GB")
    found = measure(
        name, CONFIGS[size.name], "cuda", torch.bfloat16, side=512, batch=4, guidance=GUIDANCE[name]
    )
    with capsys.disabled():
        print(
            f"\n{size.name}, 512 x 512, guidance {GUIDANCE[name]:g}, bfloat16: built in "
            f"{found.build_s:.0f} s; forward of 4 {found.forward_s:.3f} s, step of 4 "
            f"{found.step_s:.3f} s, adapter update of 1 {found.update_s:.3f} s; peak to sample "
            f"{found.sample_bytes / 1e9:.1f} GB, to train {found.train_bytes / 1e9:.1f} GB"
        )
    assert found.finite and found.moved > 0
    # The weights themselves, and not twice over.
    assert 2 * size.transformer < found.train_bytes < 2 * size.transformer + 60e9
    torch.cuda.empty_cache()


@pytest.mark.parametrize("name", sorted(REAL))
def test_the_same_code_runs_tiny_without_a_gpu(name):
    config = dict((sd3 if name == "sd3" else qwen_image)().transformer.config)
    config = {key: value for key, value in config.items() if not key.startswith("_")}
    found = measure(name, config, "cpu", torch.float32, side=64, batch=2, guidance=GUIDANCE[name])
    assert found.finite and found.moved > 0
