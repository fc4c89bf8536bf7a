"""`python -m spotlightd.replay_command STATE_DIR ID`: one trajectory again, compared; JSON out.

A rollout whose trajectory is kept is compared in latents and log-probs. Of others only the picture
is kept, and is compared pixel by pixel.
"""

import sys
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
import typer
from PIL import Image

from spotlightd.commands import run_app
from spotlightd.config import Config
from spotlightd.dit.lora import attach_lora, bind_adapter, read_adapter
from spotlightd.dit.models import DiffusionModel, load_model
from spotlightd.dit.sampler import Sampler
from spotlightd.errors import ExitCode, InputError, UsageError
from spotlightd.models import resolve_model_dir
from spotlightd.replay import replay, sample_whole
from spotlightd.store.blobs import Blobs
from spotlightd.store.history import History, SampleRow

LATENT_TOLERANCE = 1e-5
"""Of fp32 latents and log-probs: DESIGN, what always holds, line 1."""
PIXEL_TOLERANCE = 1
"""Grey levels of 255: decoding rounds."""

app = typer.Typer(
    help="Produce one trajectory again and compare it.",
    epilog="Example: python -m spotlightd.replay_command /var/lib/spotlight r-12-3-0",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command(epilog="Example: python -m spotlightd.replay_command /var/lib/spotlight r-12-3-0")
def main(
    state_dir: Annotated[Path, typer.Argument(help="Of the run.")],
    trajectory: Annotated[str, typer.Argument(help="Id of the request.")],
) -> None:
    """Print what came of it; exit code 1 where it differs."""
    found = replay_one(state_dir, trajectory)
    print(msgspec.json.encode(found).decode())
    if not found["same"]:
        raise typer.Exit(ExitCode.FAILURE)


def replay_one(state_dir: Path, request_id: str) -> dict[str, Any]:
    """Sample one request anew on the CPU in fp32 and compare it with what the store holds.

    Raises:
        UsageError: no such trajectory.
        InputError: neither trajectory nor picture of it is kept, or its weights are gone.
    """
    history = History(state_dir)
    try:
        row = history.sample(request_id)
        ((raw, *_),) = history.read("SELECT config FROM run")
    finally:
        history.close()
    if row is None:
        raise UsageError(f"no trajectory '{request_id}'; `spotlightctl samples` lists them")
    if not row.trajectory and not row.image:
        raise InputError(
            f"neither trajectory nor picture of {request_id} is kept: store.trajectories_kept says "
            f"for how many iterations they are"
        )
    config = msgspec.json.decode(str(raw), type=Config)
    if config.trainer.train != "lora":
        raise InputError("only runs that train an adapter can be replayed: others keep one version")
    path = state_dir / "weights" / str(row.request.policy_version) / "adapter.safetensors"
    if not path.exists():
        raise InputError(f"the weights of version {row.request.policy_version} are gone ({path})")
    model = load_model(resolve_model_dir(config.run.model), torch.float32, "cpu")
    attach_lora(model, config.trainer.lora_rank, config.trainer.lora_alpha)
    blobs = Blobs(state_dir / "blobs")
    if row.trajectory:
        pairs = [(row.request, row.trajectory)]
        (compared,) = replay(model, state_dir / "weights", blobs, pairs)
        return _verdict(
            request_id,
            "latents and log-probs",
            compared.difference,
            LATENT_TOLERANCE,
            compared.problem,
        )
    bind_adapter(model, read_adapter(path), str(path))
    return _compare_pictures(model, row, blobs.get(row.image))


def _compare_pictures(model: DiffusionModel, row: SampleRow, stored: bytes) -> dict[str, Any]:
    sampler = Sampler(model)
    (image,) = sampler.decode(sample_whole(sampler, [row.request]))
    with Image.open(BytesIO(stored)) as opened:
        before = np.asarray(opened.convert("RGB"), dtype=np.int16)
    if image.ndim != 3:
        raise InputError(f"{row.request.request_id} is a video: only pictures are compared")
    after = np.broadcast_to(image, before.shape).astype(np.int16)
    difference = float(np.abs(before - after).max())
    return _verdict(row.request.request_id, "pixels (of 255)", difference, PIXEL_TOLERANCE)


def _verdict(
    request_id: str, compared: str, difference: float, tolerance: float, problem: str = ""
) -> dict[str, Any]:
    return {
        "request_id": request_id,
        "same": not problem and difference <= tolerance,
        "compared": compared,
        "difference": None if problem else difference,
        "tolerance": tolerance,
        "problem": problem,
    }


if __name__ == "__main__":
    sys.exit(run_app(app, "replay"))
