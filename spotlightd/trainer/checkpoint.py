"""Checkpoints: a folder `checkpoints/<version>/`, whole or absent, with the shards of every rank.

`torch.distributed.checkpoint` writes and reads it, in safetensors: a checkpoint holds no pickle,
and one that N ranks wrote can be read by M. `state.json` holds each file's digest and is written
last.

    weights.<name>, first.<name>, second.<name>   trained weights and AdamW's moments
    average.<name>                                the weights' moving average, where there is one
    steps                                         AdamW's step of each weight that has moments
"""

import logging
import os
import shutil
import warnings
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from spotlightd.atomic import digest_of, explain, sync_folders, write_file
from spotlightd.errors import InputError
from spotlightd.trainer.policy import Policy

logger = logging.getLogger(__name__)

MOMENTS = {"first": "exp_avg", "second": "exp_avg_sq"}
STATE = "state.json"
ALONE = "torch.distributed is disabled"
"""What torch warns of when one process saves or loads by itself."""


class _State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    files: dict[str, str]
    """Digest of each file."""
    moments: list[str]
    """Weights that the optimizer has stepped, in the order of `steps`."""
    averaged: int | None
    """Optimizer steps in the average; None where there is no average."""


def save_checkpoint(root: Path, version: int, policy: Policy, keep: int) -> None:
    """Write a version's checkpoint durably and drop the oldest beyond `keep`; all ranks call it.

    Raises TryAgainError when the disk is full; earlier checkpoints stand.
    """
    folder, temporary = root / str(version), root / f".writing-{version}"
    ranks = policy.ranks
    moments = [n for n, p in policy.parameters.items() if policy.optimizer.state.get(p)]
    averaged = policy.ema.steps if policy.ema else None
    policy.select(averages=False)
    try:
        if ranks.leads:
            shutil.rmtree(temporary, ignore_errors=True)
            _make(temporary)
        ranks.wait()
        writer = HuggingFaceStorageWriter(str(temporary), save_distributed=True)
        _write(_tensors(policy, moments), writer, ranks.count == 1, temporary)
        if ranks.leads:
            files = {p.name: digest_of(p.read_bytes()) for p in sorted(temporary.iterdir())}
            state = _State(version, files, moments, averaged)
            write_file(temporary / STATE, msgspec.json.encode(state))
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if ranks.leads:
        sync_folders([root])
        for old in sorted(_versions(root))[:-keep]:
            shutil.rmtree(root / str(old), ignore_errors=True)
    ranks.wait()


def load_checkpoint(root: Path, version: int, policy: Policy) -> int:
    """Restore a version, or the newest good one before it; return the version restored.

    All ranks call it, and rank 0 decides which is good. Raises InputError when none is, naming
    what is wrong with each.
    """
    problems = []
    for candidate in sorted((v for v in _versions(root) if v <= version), reverse=True):
        try:
            state = _check(root / str(candidate), policy)
        except InputError as error:
            problems.append(str(error))
            logger.error("%s; trying the one before", error)
            continue
        _restore(root / str(candidate), state, policy)
        return candidate
    raise InputError(
        f"no usable checkpoint of version {version} or before in {root}: "
        f"{'; '.join(problems) or 'there is none'}"
    )


def _tensors(policy: Policy, moments: list[str]) -> dict[str, Tensor]:
    """Return what a checkpoint consists of; shards stay shards, and memory is not copied."""
    states = {name: policy.optimizer.state[policy.parameters[name]] for name in moments}
    tensors = {f"weights.{name}": p.detach() for name, p in policy.parameters.items()}
    for prefix, key in MOMENTS.items():
        tensors |= {f"{prefix}.{name}": state[key] for name, state in states.items()}
    if policy.ema is not None:
        tensors |= {f"average.{name}": t for name, t in policy.ema.averages.items()}
    if moments:
        tensors["steps"] = torch.stack([state["step"].cpu() for state in states.values()])
    return tensors


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise explain(error, folder) from error


def _write(
    tensors: dict[str, Tensor], writer: HuggingFaceStorageWriter, alone: bool, folder: Path
) -> None:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=ALONE)
            save(tensors, storage_writer=writer, no_dist=alone)
    except OSError as error:
        raise explain(error, folder) from error
    except CheckpointException as error:
        causes = [wrapped[0] for wrapped in error.failures.values()]
        system = next((cause for cause in causes if isinstance(cause, OSError)), None)
        if system is None:
            raise
        raise explain(system, folder) from error


def _check(folder: Path, policy: Policy) -> _State:
    """Rank 0 reads every byte; the others hear what it found. Raises InputError on each."""
    problem = ""
    if policy.ranks.leads:
        try:
            _check_files(folder, policy)
        except InputError as error:
            problem = str(error)
    problem = policy.ranks.share(problem.encode()).decode()
    if problem:
        raise InputError(problem)
    return msgspec.json.decode((folder / STATE).read_bytes(), type=_State)


def _check_files(folder: Path, policy: Policy) -> None:
    try:
        state = msgspec.json.decode((folder / STATE).read_bytes(), type=_State)
        for name, digest in state.files.items():
            if digest_of((folder / name).read_bytes()) != digest:
                raise InputError(f"checkpoint {folder} is damaged: {name} has another digest")
        found = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(f"checkpoint {folder} is damaged: {error!r}") from None
    names = {key.removeprefix("weights.") for key in found if key.startswith("weights.")}
    if names != policy.parameters.keys():
        raise InputError(
            f"checkpoint {folder} holds {len(names)} weights of another model, or of another "
            f"trainer.train; this run trains {len(policy.parameters)}"
        )
    for name, parameter in policy.parameters.items():
        stored = found[f"weights.{name}"]
        if isinstance(stored, TensorStorageMetadata) and stored.size != parameter.shape:
            raise InputError(f"checkpoint {folder} has another adapter rank: {name}")


def _restore(folder: Path, state: _State, policy: Policy) -> None:
    policy.select(averages=False)
    policy.optimizer.state.clear()
    for name in state.moments:
        parameter = policy.parameters[name]
        moments = {key: torch.zeros_like(parameter.detach()) for key in MOMENTS.values()}
        policy.optimizer.state[parameter] = {"step": torch.tensor(0.0), **moments}
    tensors = _tensors(policy, state.moments)
    if policy.ema is not None and state.averaged is None:
        logger.warning("checkpoint %s has no average: it begins anew with these weights", folder)
        tensors = {k: t for k, t in tensors.items() if not k.startswith("average.")}
    reader = HuggingFaceStorageReader(str(folder))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=ALONE)
        load(tensors, storage_reader=reader, no_dist=policy.ranks.count == 1)
    for place, name in enumerate(state.moments):
        policy.optimizer.state[policy.parameters[name]]["step"].copy_(tensors["steps"][place])
    if policy.ema is not None:
        policy.ema.restart(state.averaged)


def _versions(root: Path) -> list[int]:
    if not root.is_dir():
        return []
    return [int(path.name) for path in root.iterdir() if path.name.isdigit()]
