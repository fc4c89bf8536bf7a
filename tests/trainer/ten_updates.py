"""What each rank of `test_ranks.py` runs: `ten_updates.py FOLDER NAME:UPDATES...`.

FOLDER holds `<name>.json` (the trainer's settings) and `train.json` (the batch). Every update takes
the same batch and is checkpointed; what was measured goes to `<name>.losses.json` and the final
weights to `<name>.safetensors`. A run goes on from its newest checkpoint. With a file `<name>.kill`
rank 1 kills itself in the middle of update 5, once.
"""

import json
import os
import signal
import sys
from pathlib import Path

import msgspec
import torch
from msgspec import structs
from safetensors.torch import save_file

from spotlightd.trainer.actions import Actions
from spotlightd.trainer.main import build_policy, restore
from spotlightd.trainer.ranks import leave_ranks
from spotlightd.trainer.settings import read_settings
from spotlightd.trainer.sharding import whole_tensors
from spotlightd.wire.training import Train


def kill_once(path: Path, fraction: float) -> None:
    if path.exists() and fraction >= 0.5:
        path.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def run(folder: Path, name: str, updates: int) -> None:
    if (folder / f"{name}.losses.json").exists():
        return
    settings = read_settings(folder / f"{name}.json")
    checkpoints = Path(settings.state_dir) / "checkpoints"
    versions = [int(p.name) for p in checkpoints.glob("[0-9]*")]
    settings = structs.replace(settings, resume_version=max(versions, default=-1))
    actions = Actions(settings, build_policy(settings))
    ranks = actions.ranks
    begun = version = restore(settings, actions)
    batch = actions.load(msgspec.json.decode((folder / "train.json").read_bytes(), type=Train))
    assert batch is not None
    metrics = []
    while version < updates:

        def progress(fraction: float, version: int = version) -> None:
            if version == 4 and ranks.rank == 1:
                kill_once(folder / f"{name}.kill", fraction)

        metrics.append(actions.update(batch, version, progress).metrics)
        version += 1
        actions.publish(version)
    weights = whole_tensors(actions.policy.parameters)
    if actions.policy.ema is not None:
        averages = whole_tensors(actions.policy.ema.averages)
        weights |= {f"average.{k}": t for k, t in averages.items()}
    ranks.wait()
    if ranks.leads:
        save_file(weights, folder / f"{name}.safetensors")
        found = {"begun": begun, "ranks": ranks.count, "metrics": metrics}
        (folder / f"{name}.losses.json").write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in sys.argv[2:]:
        name, _, updates = each.partition(":")
        run(Path(sys.argv[1]), name, int(updates))
    leave_ranks()
