"""A seed must fix the step noise too: only then do stale weights rank seeds as new ones do."""

import pytest
import torch

from spotlightd.dit import sampler as sampler_module
from spotlightd.dit.lora import adapter_parameters, attach_lora
from spotlightd.dit.models import load_model
from spotlightd.dit.sampler import Sampler
from spotlightd.models import resolve_model_dir
from spotlightd.planner.correlation import spearman
from spotlightd.rewards.scoring import Scorer
from spotlightd.wire.sampling import Request, SamplerSettings
from triton_kernels.denoise import NoiseKey

WORDS, SEEDS = ("MARKET", "SNOW", "B52", "COFFEE"), range(16)
PERTURBATION = 4e-3
"""Spread given to the adapter's B: ranks then move as over one version in training."""


@pytest.fixture(scope="module")
def shipped():
    model = load_model(resolve_model_dir("glyph-ocr"))
    attach_lora(model, 16, 32.0)
    return model


def scores(model):
    """CTC score by word, of 16 seeds each."""
    settings = SamplerSettings(model.sigmas(10), "flow_sde", 0.7, tuple(range(4)), 1.0, 32, 128)
    sampler, scorer = Sampler(model), Scorer(["ocr_ctc"])
    found = {}
    for word in WORDS:
        text = f'A shop sign that reads "{word}".'
        group = [
            sampler.start(Request(f"{s}", "explore", 0, word, text, word, s, 0, settings))
            for s in SEEDS
        ]
        for _ in range(settings.num_steps):
            sampler.advance(group)
        outcomes = scorer.score(sampler.decode(group), [word] * len(group))
        found[word] = [outcome.scores["ocr_ctc"] for outcome in outcomes]
    return found


def mean_correlation(stale, fresh):
    return sum(spearman(stale[w], fresh[w]) for w in WORDS) / len(WORDS)


def move_on(model):
    """Stand in for one update of the policy."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in adapter_parameters(model).items():
            if "lora_B" in name:
                parameter.add_(PERTURBATION * torch.randn(parameter.shape, generator=generator))


def test_keyed_noise_keeps_the_ranking_over_a_version_and_unkeyed_noise_loses_it(
    shipped, monkeypatch
):
    stale = scores(shipped)
    move_on(shipped)
    keyed = mean_correlation(stale, scores(shipped))

    def unkeyed(seeds, step_indices, stream):
        return NoiseKey([seed + 1000 for seed in seeds], step_indices, stream)

    monkeypatch.setattr(sampler_module, "NoiseKey", unkeyed)
    lost = mean_correlation(stale, scores(shipped))
    assert keyed > 0.85
    assert lost < 0.5
