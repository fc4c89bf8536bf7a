"""Pretrains the embedded model from text that it renders itself (`make pretrain`).

Captions are noisy on purpose: each quoted character is replaced with probability 0.5, as web
captions are wrong part of the time. The model then draws the right character only part of the
time, and reinforcement learning has something to sharpen.

    python scripts/pretrain.py --out DIR --seed 0

CPU training is not bit-stable across machines: the result is judged by the range in the card.
"""

import argparse
import json
import math
import random
import time
from pathlib import Path

import numpy as np
import torch
from diffusers import QwenImageTransformer2DModel
from measure import measure
from rich.progress import track
from torch import Tensor

from spotlightd.dit.models import load_model
from spotlightd.dit.models.glyph_ocr import (
    CHANNELS,
    PATCH,
    TEXT_WIDTH,
    TRANSFORMER_CONFIG,
    GlyphOcr,
    PatchCodec,
)
from spotlightd.dit.models.glyph_render import CELLS, GlyphSheet, load_fonts
from spotlightd.dit.models.glyph_text import GlyphTextEncoder
from spotlightd.wire.sampling import SamplerSettings

CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
WORDS = Path(__file__).parents[1] / "spotlightd/dit/models/glyph_words.txt"
HELD_OUT = Path(__file__).parents[1] / "spotlightd/prompts_data/held_out.txt"
CAPTION_NOISE = 0.5
SHIFT = 3.0
PAPER_GRAIN = 0.02
"""Standard deviation of noise on training pixels, in [-1, 1] units."""
TEMPLATES = (
    'A shop sign that reads "{}".',
    'A neon sign with the word "{}".',
    'A street sign saying "{}".',
    'A poster with the text "{}".',
    'A label that says "{}".',
    'A billboard displaying "{}".',
)


class Captions:
    """Draws (word on the image, word in the caption)."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._words = WORDS.read_text().split()
        self._held_out = {line.split('"')[1] for line in HELD_OUT.read_text().splitlines()}

    def draw(self) -> tuple[str, str]:
        rng = self._rng
        if rng.random() < 0.5:
            word = rng.choice(self._words)
        else:
            word = "".join(rng.choices(CHARACTERS, k=rng.randint(2, CELLS)))
        if word in self._held_out:
            return self.draw()
        noisy = [rng.choice(CHARACTERS) if rng.random() < CAPTION_NOISE else c for c in word]
        return word, rng.choice(TEMPLATES).format("".join(noisy))


def fit_codec(sheet: GlyphSheet, captions: Captions, rng: random.Random) -> PatchCodec:
    """Principal components of rendered patches, scaled as a whole to unit mean variance."""
    images = np.stack([sheet.render(captions.draw()[0], rng) for _ in range(4000)])
    grid = images.reshape(-1, 2, PATCH, CELLS, PATCH).transpose(0, 1, 3, 2, 4)
    patches = torch.from_numpy(grid.reshape(-1, PATCH * PATCH).copy())
    mean = patches.mean(0)
    _, singular, right = torch.linalg.svd(patches - mean, full_matrices=False)
    basis = right[:CHANNELS]
    scale = singular[:CHANNELS].square().mean().sqrt() / math.sqrt(len(patches))
    return PatchCodec(mean, basis.T / scale, scale * basis)


def make_batch(
    sheet: GlyphSheet, captions: Captions, rng: random.Random, size: int, grain: torch.Generator
) -> tuple[Tensor, list[str]]:
    drawn = [captions.draw() for _ in range(size)]
    images = torch.from_numpy(np.stack([sheet.render(word, rng) for word, _ in drawn]))
    images = images + PAPER_GRAIN * torch.randn(images.shape, generator=grain)
    return images, [caption for _, caption in drawn]


def new_model(codec: PatchCodec) -> GlyphOcr:
    transformer = QwenImageTransformer2DModel(**TRANSFORMER_CONFIG)
    return GlyphOcr(transformer, GlyphTextEncoder(TEXT_WIDTH), codec, SHIFT, torch.device("cpu"))


def train(
    model: GlyphOcr, sheet: GlyphSheet, captions: Captions, args: argparse.Namespace
) -> float:
    """Flow matching: predict noise minus data at a shifted uniform sigma. Returns the last loss."""
    rng = random.Random(args.seed + 1)
    generator = torch.Generator().manual_seed(args.seed + 2)
    parameters = [*model.transformer.parameters(), *model.text_encoder.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=args.lr, betas=(0.9, 0.98), weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: _lr(i, args.steps))
    settings = SamplerSettings((1.0, 0.0), "flow_sde", 0.0, (), 1.0, 32, 128)
    mean_loss = 0.0
    for step in track(range(args.steps), "pretraining"):
        images, prompts = make_batch(sheet, captions, rng, args.batch, generator)
        data = model.codec.encode(images)
        noise = torch.randn(data.shape, generator=generator)
        uniform = torch.rand(len(data), generator=generator)
        sigma = SHIFT * uniform / (1 + (SHIFT - 1) * uniform)
        noisy = (1 - sigma.view(-1, 1, 1)) * data + sigma.view(-1, 1, 1) * noise
        velocity = model.velocity(noisy, sigma, model.encode_prompts(prompts), settings)
        loss = (velocity - (noise - data)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        mean_loss = loss.item() if step == 0 else 0.98 * mean_loss + 0.02 * loss.item()
    return mean_loss


def _lr(step: int, steps: int) -> float:
    warm_up = min(1.0, (step + 1) / 50)
    return warm_up * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    sheet, captions = GlyphSheet(load_fonts(), CHARACTERS), Captions(rng)
    began = time.monotonic()
    model = new_model(fit_codec(sheet, captions, rng))
    loss = train(model, sheet, captions, args)
    args.out.mkdir(parents=True, exist_ok=True)
    model.save(args.out)
    made = {"loss": loss, "seconds": time.monotonic() - began, "steps": args.steps}
    print(json.dumps({**made, **measure(load_model(args.out))}, indent=2))


if __name__ == "__main__":
    main()
