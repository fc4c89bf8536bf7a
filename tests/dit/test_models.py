"""A model folder loads whole or is refused with a sentence that names the file."""

import itertools
import json
import shutil

import numpy as np
import pytest
import torch

from spotlightd.dit.models import load_model
from spotlightd.dit.models.digests import write_index
from spotlightd.errors import InputError
from spotlightd.models import EMBEDDED_DIR, resolve_model_dir

WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"
FILES = (WEIGHTS, "transformer/config.json", "text_encoder.safetensors", "codec.safetensors")


@pytest.fixture
def folder(model_dir, tmp_path):
    """A copy to damage."""
    return shutil.copytree(model_dir, tmp_path / "copy")


def flip_bit(path, at=-3):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_weights_are_stored_narrow_and_computed_in_float32(model):
    assert {p.dtype for p in model.transformer.parameters()} == {torch.float32}
    assert not any(p.requires_grad for p in model.transformer.parameters())


def test_saving_leaves_the_model_as_it_was(model, tmp_path):
    model.save(tmp_path)
    assert {p.dtype for p in model.transformer.parameters()} == {torch.float32}
    again = load_model(tmp_path)
    for a, b in zip(model.transformer.parameters(), again.transformer.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_named_with_both_digests(folder, name):
    flip_bit(folder / name)
    expected = json.loads((folder / "model_index.json").read_text())["sha256"][name]
    with pytest.raises(InputError, match=f"{name} is damaged: its SHA-256 .* {expected}"):
        load_model(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(InputError, match=f"{name} cannot be read"):
        load_model(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_named(folder, name):
    path = folder / name
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InputError, match=f"{name} is damaged"):
        load_model(folder)


def test_tensors_of_another_model_are_refused_even_with_right_digests(folder):
    shutil.copy(folder / "codec.safetensors", folder / "text_encoder.safetensors")
    write_index(folder, {"_class_name": "GlyphOcrPipeline"})
    with pytest.raises(InputError, match="tensors do not fit the model"):
        load_model(folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", "not json", '{"_class_name": 3}'])
def test_a_bad_index_is_named(folder, text):
    (folder / "model_index.json").write_text(text)
    with pytest.raises(InputError, match=r"model_index\.json"):
        load_model(folder)


def test_an_index_without_digests_is_refused(folder):
    (folder / "model_index.json").write_text('{"_class_name": "GlyphOcrPipeline"}')
    with pytest.raises(InputError, match="lists no digests"):
        load_model(folder)


def test_an_unknown_class_is_refused_with_those_known(folder):
    write_index(folder, {"_class_name": "SanaPipeline"})
    with pytest.raises(
        InputError, match="no adapter for 'SanaPipeline'; known: FluxPipeline, GlyphOcrPipeline"
    ):
        load_model(folder)


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(InputError, match="no model at"):
        resolve_model_dir(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("steps", [1, 2, 10, 50])
def test_sigmas_fall_from_one_to_zero(model, steps):
    sigmas = model.sigmas(steps)
    assert len(sigmas) == steps + 1
    assert (sigmas[0], sigmas[-1]) == (1.0, 0.0)
    assert all(a > b for a, b in itertools.pairwise(sigmas))


def test_sigmas_have_the_models_shift(model):
    expected = [3 * s / (1 + 2 * s) for s in (1.0, 0.75, 0.5, 0.25)]
    assert model.sigmas(4)[:-1] == pytest.approx(expected, abs=1e-6)


def test_every_prompt_has_one_length_so_that_company_changes_nothing(model):
    prompts = ['"A"', 'A sign that reads "EIGHTCHR" on a very long wall.']
    together = model.encode_prompts(prompts).embeds_BTC
    for row, prompt in enumerate(prompts):
        assert torch.equal(model.encode_prompts([prompt]).embeds_BTC[0], together[row])


def test_the_codec_returns_what_lies_in_its_span(model):
    latents = torch.randn(2, 16, 64, generator=torch.Generator().manual_seed(0))
    pixels = model.codec.decode(latents, 32, 128)
    torch.testing.assert_close(model.codec.encode(pixels), latents, atol=1e-4, rtol=0)


def test_decoding_clips_to_bytes(model):
    images = model.decode(torch.full((1, 16, 64), 1e4), 32, 128)
    assert images.dtype == np.uint8
    assert set(np.unique(images)) <= set(range(256))


def test_the_embedded_model_ships_and_loads():
    model = load_model(resolve_model_dir("glyph-ocr"))
    assert sum(p.numel() for p in model.transformer.parameters()) < 3_000_000
    assert sum(p.stat().st_size for p in EMBEDDED_DIR.rglob("*")) < 6 * 2**20


def test_the_card_states_the_digests_of_what_ships():
    card = (EMBEDDED_DIR / "README.md").read_text()
    digests = json.loads((EMBEDDED_DIR / "model_index.json").read_text())["sha256"]
    assert digests[WEIGHTS] in card
