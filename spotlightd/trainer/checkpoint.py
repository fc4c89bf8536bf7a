"""Checkpoints: `checkpoints/<version>/{tensors.safetensors,state.json}`, whole or absent.

Tensors are the adapter and AdamW's moments; `state.json` holds scalars and the tensors' digest.
No pickle anywhere.
"""

import json
import logging
import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from spotlightd.atomic import digest_of, sync_folders, write_file
from spotlightd.errors import InputError
from spotlightd.trainer.policy import Policy

logger = logging.getLogger(__name__)

MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def save_checkpoint(root: Path, version: int, policy: Policy, keep: int) -> None:
    """Write a version's checkpoint durably and drop the oldest beyond `keep`.

    Raises TryAgainError when the disk is full; earlier checkpoints stand.
    """
    folder, temporary = root / str(version), root / f".writing-{version}"
    shutil.rmtree(temporary, ignore_errors=True)
    tensors = save(_tensors(policy))
    try:
        write_file(temporary / "tensors.safetensors", tensors)
        state = {"version": version, "tensors": digest_of(tensors)}
        write_file(temporary / "state.json", json.dumps(state).encode())
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folders([root])
    for old in sorted(_versions(root))[:-keep]:
        shutil.rmtree(root / str(old), ignore_errors=True)


def load_checkpoint(root: Path, version: int, policy: Policy) -> int:
    """Restore a version, or the newest good one before it; return the version restored.

    Raises InputError when none is good, naming what is wrong with each.
    """
    problems = []
    for candidate in sorted((v for v in _versions(root) if v <= version), reverse=True):
        try:
            _restore(root / str(candidate), policy)
        except InputError as error:
            problems.append(str(error))
            logger.error("%s; trying the one before", error)
            continue
        return candidate
    raise InputError(
        f"no usable checkpoint of version {version} or before in {root}: "
        f"{'; '.join(problems) or 'there is none'}"
    )


def _tensors(policy: Policy) -> dict[str, Tensor]:
    tensors = {}
    for name, parameter in policy.parameters.items():
        tensors[f"adapter/{name}"] = parameter.detach().cpu().contiguous()
        for moment in MOMENTS:
            value = policy.optimizer.state.get(parameter, {}).get(moment)
            if value is not None:
                tensors[f"{moment}/{name}"] = value.cpu().contiguous()
    return tensors


def _restore(folder: Path, policy: Policy) -> None:
    try:
        state = json.loads((folder / "state.json").read_text())
        data = (folder / "tensors.safetensors").read_bytes()
        expected = state["tensors"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"checkpoint {folder} is damaged: {error!r}") from None
    if digest_of(data) != expected:
        raise InputError(f"checkpoint {folder} is damaged: its tensors do not have their digest")
    tensors = load(data)
    names = {f"adapter/{name}" for name in policy.parameters}
    if not names <= tensors.keys():
        raise InputError(f"checkpoint {folder} is of another model or adapter rank")
    with torch.no_grad():
        for name, parameter in policy.parameters.items():
            if tensors[f"adapter/{name}"].shape != parameter.shape:
                raise InputError(f"checkpoint {folder} has another adapter rank: {name}")
            parameter.copy_(tensors[f"adapter/{name}"])
            moments = {m: tensors[f"{m}/{name}"] for m in MOMENTS if f"{m}/{name}" in tensors}
            if moments:
                policy.optimizer.state[parameter] = {
                    m: value.to(parameter.device if m != "step" else "cpu")
                    for m, value in moments.items()
                }


def _versions(root: Path) -> list[int]:
    if not root.is_dir():
        return []
    return [int(path.name) for path in root.iterdir() if path.name.isdigit()]
