"""Measures a model folder as the card of the embedded model states it.

    python scripts/measure.py DIR

Held-out words by ODE, 10 steps, seeds 0 to 3: mean reward, CTC score, grain, share read exactly.
All shipped prompts by SDE in groups of 16 seeds: spread of the reward within a group, and how many
groups have none (those teach nothing).
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from spotlightd.dit.models import DiffusionModel, load_model
from spotlightd.dit.sampler import Sampler
from spotlightd.rewards.scoring import Scorer
from spotlightd.wire.sampling import Request, SamplerSettings

PROMPTS = Path(__file__).parents[1] / "spotlightd" / "prompts_data"
STEPS, BATCH = 10, 16
REWARDS = ("ocr", "ocr_ctc", "grain")


def read_prompts(name: str) -> list[str]:
    return [line for line in (PROMPTS / name).read_text().splitlines() if line]


def sample_scores(
    model: DiffusionModel, prompts: Sequence[str], seeds: Sequence[int], window: Sequence[int]
) -> dict[str, np.ndarray]:
    """Return each reward as [prompts, seeds]."""
    settings = SamplerSettings(model.sigmas(STEPS), "flow_sde", 0.7, tuple(window), 1.0, 32, 128)
    requests = [
        Request(f"{i}-{seed}", "evaluate", 0, str(i), text, text.split('"')[1], seed, 0, settings)
        for i, text in enumerate(prompts)
        for seed in seeds
    ]
    sampler, scorer = Sampler(model), Scorer(REWARDS)
    outcomes = []
    for first in range(0, len(requests), BATCH):
        batch = requests[first : first + BATCH]
        trajectories = [sampler.start(request) for request in batch]
        for _ in range(STEPS):
            sampler.advance(trajectories)
        outcomes += scorer.score(sampler.decode(trajectories), [r.target for r in batch])
    scores = [[outcome.scores[name] for outcome in outcomes] for name in REWARDS]
    shape = len(REWARDS), len(prompts), len(seeds)
    return dict(zip(REWARDS, np.array(scores).reshape(shape), strict=True))


def measure(model: DiffusionModel) -> dict[str, float]:
    """Return the card's numbers by name."""
    held_out, train = read_prompts("held_out.txt"), read_prompts("train.txt")
    ode = sample_scores(model, held_out, range(4), window=())
    groups = sample_scores(model, train + held_out, range(16), window=range(4))["ocr"].std(axis=1)
    return {
        **{f"held_out.{name}": float(values.mean()) for name, values in ode.items()},
        "held_out.exact": float((ode["ocr"] == 1).mean()),
        "group.mean_std": float(groups.mean()),
        "group.min_std": float(groups.min()),
        "group.without_spread": float((groups == 0).sum()),
        "group.count": float(len(groups)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(measure(load_model(arguments.folder)), indent=2))


if __name__ == "__main__":
    main()
