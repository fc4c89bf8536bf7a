"""Ranks of a sequence-parallel group as threads of one process, and tiny models for them.

Groups of this project need no global state of torch, so every thread can be a rank: real gloo
sockets, without the ten seconds that each process takes to import diffusers.
"""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from spotlightd.dit.models import PromptEmbeds
from spotlightd.dit.sampler import Sampler
from spotlightd.dit.sequence_parallel import SequenceParallel
from spotlightd.dit.sp_group import GroupMaker, Place, SpGroup, make_store
from spotlightd.dit.trajectory import Trajectory
from spotlightd.wire.sampling import Request, SamplerSettings

CPU = torch.device("cpu")
HEADS, SIZE, TEXT, PROMPT = 4, 16, 7, 24
CHANNELS = {"qwen": 64, "flux": 64, "sd3": 16}
PROMPTS = ('a sign "OPEN"', 'a sign "SHUT"', 'a sign "CAFE"')


def make_transformer(kind: str) -> torch.nn.Module:
    """Return a random transformer of one of diffusers' classes, two blocks or one of each kind."""
    from diffusers import (
        FluxTransformer2DModel,
        QwenImageTransformer2DModel,
        SD3Transformer2DModel,
    )

    torch.manual_seed(0)
    common = {
        "attention_head_dim": SIZE,
        "num_attention_heads": HEADS,
        "joint_attention_dim": PROMPT,
        "in_channels": CHANNELS[kind],
    }
    if kind == "qwen":
        model = QwenImageTransformer2DModel(
            **common, num_layers=2, out_channels=16, axes_dims_rope=(4, 6, 6)
        )
    elif kind == "flux":
        model = FluxTransformer2DModel(
            **common, num_layers=1, num_single_layers=1, pooled_projection_dim=12,
            axes_dims_rope=(4, 6, 6), guidance_embeds=True,
        )  # fmt: skip
    else:
        # SD3.5-medium's first blocks attend to the image a second time.
        model = SD3Transformer2DModel(
            **common, num_layers=2, sample_size=32, caption_projection_dim=HEADS * SIZE,
            pooled_projection_dim=12, out_channels=16, pos_embed_max_size=32,
            dual_attention_layers=(0,), qk_norm="rms_norm",
        )  # fmt: skip
    for name, parameter in model.named_parameters():
        if "norm" in name or parameter.abs().max() == 0:  # ones and zeros hide what is not used
            torch.nn.init.normal_(parameter, 0.5, 0.2)
    return model.eval().requires_grad_(False)


class TinyModel:
    """A `DiffusionModel` over one of the transformers; prompts are random but fixed."""

    device = CPU

    def __init__(self, kind: str, transformer: torch.nn.Module) -> None:
        self.kind, self.transformer = kind, transformer

    def latent_shape(self, height: int, width: int, num_frames: int = 1) -> tuple[int, int]:
        return (height // 16) * (width // 16), 64

    def encode_prompts(self, prompts: list[str]) -> PromptEmbeds:
        seeds = [sum(map(ord, prompt)) for prompt in prompts]
        drawn = [
            torch.randn(TEXT, PROMPT, generator=torch.Generator().manual_seed(seed))
            for seed in seeds
        ]
        return PromptEmbeds(torch.stack(drawn))

    def velocity(self, latents_BLD, sigma_B, prompts, settings):
        rows, columns = settings.height // 16, settings.width // 16
        batch = len(latents_BLD)
        inputs: dict[str, Any] = {
            "hidden_states": latents_BLD,
            "encoder_hidden_states": prompts.embeds_BTC,
            "timestep": sigma_B,
            "return_dict": False,
        }
        if self.kind == "qwen":
            inputs["img_shapes"] = [[(1, rows, columns)]] * batch
        else:
            inputs["pooled_projections"] = prompts.embeds_BTC[:, 0, :12]
        if self.kind == "flux":
            grid = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).float()
            inputs["img_ids"] = torch.nn.functional.pad(grid, (1, 0))
            inputs["txt_ids"] = torch.zeros(TEXT, 3)
            inputs["guidance"] = torch.full((batch,), 3.5)
        if self.kind == "sd3":
            grid = latents_BLD.view(batch, rows, columns, 16, 2, 2).permute(0, 3, 1, 4, 2, 5)
            inputs["hidden_states"] = grid.reshape(batch, 16, 2 * rows, 2 * columns)
            inputs["timestep"] = sigma_B * 1000
        out = self.transformer(**inputs)[0]
        if self.kind == "sd3":
            grid = out.view(batch, 16, rows, 2, columns, 2).permute(0, 2, 4, 1, 3, 5)
            out = grid.reshape(batch, rows * columns, 64)
        return out.float()


def make_request(seed: int, tokens: tuple[int, int], steps: int = 6, kind: str = "rollout"):
    """A request for an image of rows x columns tokens; the first steps are stochastic."""
    sigmas = tuple(1 - i / steps for i in range(steps + 1))
    window = (0, 1, 3)
    rows, columns = tokens
    settings = SamplerSettings(sigmas, "flow_cps", 0.7, window, 1.0, 16 * rows, 16 * columns)
    return Request(f"r-{seed}", kind, 0, "p", PROMPTS[seed % 3], "", seed, 0, settings)


class Ranks:
    """As many ranks as the largest degree asked for, each with its own copy of a model."""

    def __init__(self, model: Any, most: int, timeout_s: float = 20.0) -> None:
        self._store = make_store()
        self.models = [copy.deepcopy(model) for _ in range(most)]
        self.parallels = [SequenceParallel(m.transformer) for m in self.models]
        self.samplers = [Sampler(m) for m in self.models]
        self.makers = [GroupMaker(self._store.port, CPU, timeout_s) for _ in range(most)]
        self._pool = ThreadPoolExecutor(most)

    def close(self) -> None:
        self._pool.shutdown()
        for maker in self.makers:
            maker.close()

    def run(self, degree: int, work: Callable[[int], Any]) -> list[Any]:
        """Return `work(rank)` of the first `degree` ranks, in a group; at degree 1 alone."""

        def enter(rank: int) -> Any:
            torch.set_num_threads(1)
            group: SpGroup | None = None
            if degree > 1:
                group = self.makers[rank].enter(Place(f"first {degree}", rank, degree))
            self.parallels[rank].group = group
            try:
                return work(rank)
            finally:
                self.parallels[rank].group = None

        return list(self._pool.map(enter, range(degree)))

    def advance(self, degree: int, trajectories: list[Trajectory]) -> list[Trajectory]:
        """Take one step of all on `degree` ranks; return rank 0's, once all are found equal."""
        copies = [copy.deepcopy(trajectories) for _ in range(degree)]
        self.run(degree, lambda rank: self.samplers[rank].advance(copies[rank]))
        for other in copies[1:]:
            for first, second in zip(copies[0], other, strict=True):
                assert torch.equal(first.latents_LD, second.latents_LD)
                assert first.window_log_probs == second.window_log_probs
        return copies[0]
