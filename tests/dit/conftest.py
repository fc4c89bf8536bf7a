"""A model folder with random weights, and requests to sample with it."""

from pathlib import Path

import pytest
import torch
from diffusers import QwenImageTransformer2DModel

from spotlightd.dit.models import DiffusionModel, load_model
from spotlightd.dit.models.glyph_ocr import (
    CHANNELS,
    PATCH,
    TEXT_WIDTH,
    TRANSFORMER_CONFIG,
    GlyphOcr,
    PatchCodec,
)
from spotlightd.dit.models.glyph_text import GlyphTextEncoder
from spotlightd.wire.sampling import Request, SamplerSettings


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `make pretrain` writes it, before any training. Read only: copy it to damage."""
    torch.manual_seed(0)
    basis = torch.linalg.qr(torch.randn(PATCH * PATCH, CHANNELS))[0]
    codec = PatchCodec(torch.zeros(PATCH * PATCH), basis, basis.T.contiguous())
    transformer = QwenImageTransformer2DModel(**TRANSFORMER_CONFIG)
    encoder = GlyphTextEncoder(TEXT_WIDTH)
    folder = tmp_path_factory.mktemp("model")
    GlyphOcr(transformer, encoder, codec, 3.0, torch.device("cpu")).save(folder)
    return folder


@pytest.fixture
def model(model_dir: Path) -> DiffusionModel:
    """A fresh model: tests may attach adapters to it."""
    return load_model(model_dir)


@pytest.fixture
def make_request(model: DiffusionModel):
    """Build requests that differ in what a test names."""

    def make(seed: int = 1, word: str = "OPEN", form: str = "flow_sde", window=(0, 2, 4), steps=6):
        settings = SamplerSettings(model.sigmas(steps), form, 0.7, tuple(window), 1.0, 32, 128)
        prompt = f'A shop sign that reads "{word}".'
        return Request(f"r-{word}-{seed}", "rollout", 0, word, prompt, word, seed, 0, settings)

    return make
