"""Two ranks under torch.distributed.run train as one does, and a killed run goes on bit-equal."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from spotlightd.config import load
from spotlightd.models import EMBEDDED_DIR
from spotlightd.store.blobs import Blobs
from spotlightd.trainer.checkpoint import load_checkpoint
from spotlightd.trainer.settings import TrainerSettings, write_settings
from tests.trainer import ten_updates
from tests.trainer.conftest import Rolled, make_policy

pytestmark = [pytest.mark.slow, pytest.mark.fault, pytest.mark.timeout(600)]

REWARDS = [[0.0, 1.0, 0.5]]
SCRIPT = Path(ten_updates.__file__)
COMMON = {
    "trainer.micro_batch": "2",
    "trainer.ema_decay": "0.5",
    "trainer.checkpoints_kept": "20",
}
FULL = {
    "trainer.train": "full",
    "trainer.learning_rate": "1e-5",
    "trainer.activation_checkpointing": "true",
}
BF16 = {"trainer.dtype": "bfloat16"}
RUNS = {
    "lora": {},
    "full": FULL,
    "killed": {},
    "resharded": {},
    "half": FULL | BF16,
    "mixed": BF16,
}


def settings_for(folder: Path, name: str, state: str) -> None:
    flags = {"store.state_dir": json.dumps(str(folder / state)), **COMMON, **RUNS[name]}
    config, _ = load(None, flags, {})
    (folder / state).mkdir(exist_ok=True)
    blobs = folder / state / "blobs"
    if not blobs.exists():
        shutil.copytree(folder / "blobs", blobs)
    settings = TrainerSettings(config, str(folder / state), str(EMBEDDED_DIR), "", "", "", -1)
    write_settings(folder / f"{name}.json", settings)


def outcome(folder: Path, name: str) -> tuple[dict, dict[str, torch.Tensor]]:
    found = json.loads((folder / f"{name}.losses.json").read_text())
    return found, load_file(folder / f"{name}.safetensors")


def two_ranks(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         str(SCRIPT), str(folder), *names],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True, text=True, timeout=560,
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Path, Path]:
    """Return the folders of runs on one rank and on two."""
    folder = tmp_path_factory.mktemp("ranks")
    rolled = Rolled(make_policy(folder), Blobs(folder / "blobs"))
    message = rolled.message(REWARDS)
    folders = folder / "one", folder / "two"
    for one_or_two in folders:
        one_or_two.mkdir()
        shutil.copytree(folder / "blobs", one_or_two / "blobs")
        (one_or_two / "train.json").write_bytes(msgspec.json.encode(message))
        for name in RUNS:
            settings_for(one_or_two, name, f"state-{name}")
    one, two = folders
    for name in ("lora", "full"):
        ten_updates.run(one, name, 10)
    for one_or_two in folders:
        for part in ("checkpoints", "weights"):
            ten = Path(part) / "10"
            shutil.copytree(one / "state-lora" / ten, one_or_two / "state-resharded" / ten)
    ten_updates.run(one, "resharded", 11)
    (two / "killed.kill").touch()
    # As the daemon does it: ranks end together, and are started together again.
    killed = two_ranks(two, "killed:6")
    assert killed.returncode != 0 and "SIGKILL" in killed.stderr
    names = ("killed:6", "lora:10", "full:10", "half:2", "mixed:2", "resharded:11")
    launched = two_ranks(two, *names)
    assert launched.returncode == 0, launched.stderr[-4000:]
    return one, two


@pytest.mark.parametrize("name", ["lora", "full"])
def test_two_ranks_lose_what_one_rank_loses_in_ten_updates(runs, name):
    (first, _), (second, _) = (outcome(folder, name) for folder in runs)
    assert (first["ranks"], second["ranks"]) == (1, 2)
    assert len(first["metrics"]) == len(second["metrics"]) == 10
    for one, two in zip(first["metrics"], second["metrics"], strict=True):
        for figure in ("loss", "kl", "ratio_mean"):
            assert two[figure] == pytest.approx(one[figure], abs=1e-5)
        assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-3)
    assert first["metrics"][0]["loss"] != first["metrics"][9]["loss"]


def test_killed_in_update_five_and_resumed_is_bit_equal_to_undisturbed(runs):
    _, two = runs
    (undisturbed, _), (killed, _) = outcome(two, "lora"), outcome(two, "killed")
    assert (undisturbed["begun"], killed["begun"], len(killed["metrics"])) == (0, 4, 2)
    for one, other in zip(undisturbed["metrics"][4:6], killed["metrics"], strict=True):
        assert (one["loss"], one["grad_norm"]) == (other["loss"], other["grad_norm"])
    # Weights, moments, averages and steps of both ranks. The files' bytes may differ in the order
    # of their metadata, and their digests with them.
    folders = [two / f"state-{name}/checkpoints/6" for name in ("lora", "killed")]
    states = [json.loads((folder / "state.json").read_text()) for folder in folders]
    shards = [sorted(state.pop("files")) for state in states]
    assert states[0] == states[1] and shards[0] == shards[1] and len(shards[0]) == 2
    for shard in shards[0]:
        one, other = (load_file(folder / shard) for folder in folders)
        assert one.keys() == other.keys()
        assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_full_training_in_bf16_keeps_fp32_masters_and_publishes_what_workers_hold(runs):
    _, two = runs
    found, weights = outcome(two, "half")
    assert all(m["skipped_steps"] == 0 for m in found["metrics"])
    published = load_file(two / "state-half/weights/2/adapter.safetensors")
    for name, tensor in published.items():
        assert weights[name].dtype == torch.float32 and tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, weights[name].bfloat16())


def test_an_adapter_on_a_bf16_model_is_sharded_in_fp32(runs):
    _, two = runs
    found, weights = outcome(two, "mixed")
    assert all(m["skipped_steps"] == 0 for m in found["metrics"])
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    published = load_file(two / "state-mixed/weights/2/adapter.safetensors")
    assert all(torch.equal(tensor, weights[name]) for name, tensor in published.items())


def test_a_checkpoint_of_two_ranks_is_read_by_one_and_the_other_way(runs, tmp_path):
    one, two = runs
    (alone, _), (together, _) = (outcome(folder, "resharded") for folder in (one, two))
    assert (alone["begun"], together["begun"]) == (10, 10)
    assert together["metrics"][0]["loss"] == pytest.approx(alone["metrics"][0]["loss"], abs=1e-5)
    _, weights = outcome(two, "lora")
    policy = make_policy(tmp_path, **COMMON)
    assert load_checkpoint(two / "state-lora/checkpoints", 10, policy) == 10
    assert all(torch.equal(p, weights[name]) for name, p in policy.parameters.items())
    assert all(
        torch.equal(t, weights[f"average.{name}"]) for name, t in policy.ema.averages.items()
    )
    assert policy.ema.steps == 20
    steps = {float(state["step"]) for state in policy.optimizer.state.values()}
    assert steps == {20.0}
