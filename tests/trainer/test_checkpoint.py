"""Checkpoints: bit-equal resume, damage, full disks."""

import errno
import os

import pytest
import torch

from spotlightd.errors import InputError, TryAgainError
from spotlightd.trainer.checkpoint import load_checkpoint, save_checkpoint
from spotlightd.trainer.update import train_on
from tests.trainer.conftest import make_policy

REWARDS = [[0.0, 1.0, 0.5]]


def quiet(_: float) -> None:
    pass


def weights(policy):
    return {name: p.detach().clone() for name, p in policy.parameters.items()}


def test_resume_is_bit_equal_after_further_updates(rolled, tmp_path):
    batch, root = rolled.batch(REWARDS), tmp_path / "checkpoints"
    train_on(rolled.policy, batch, 1, quiet)
    save_checkpoint(root, 1, rolled.policy, keep=2)
    train_on(rolled.policy, batch, 2, quiet)
    fresh = make_policy(tmp_path)
    assert load_checkpoint(root, 1, fresh) == 1
    train_on(fresh, batch, 2, quiet)
    expected = weights(rolled.policy)
    assert all(torch.equal(p, expected[name]) for name, p in weights(fresh).items())


def test_a_damaged_checkpoint_is_skipped_for_the_one_before_and_said(rolled, tmp_path, caplog):
    root = tmp_path / "checkpoints"
    save_checkpoint(root, 1, rolled.policy, keep=3)
    train_on(rolled.policy, rolled.batch(REWARDS), 1, quiet)
    save_checkpoint(root, 2, rolled.policy, keep=3)
    (path,) = (root / "2").glob("*.safetensors")
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert load_checkpoint(root, 2, make_policy(tmp_path)) == 1
    assert "checkpoint" in caplog.text and "damaged" in caplog.text


def test_without_a_usable_checkpoint_every_reason_is_named(rolled, tmp_path):
    root = tmp_path / "checkpoints"
    save_checkpoint(root, 1, rolled.policy, keep=2)
    (root / "1/state.json").write_text("{")
    with pytest.raises(InputError, match="no usable checkpoint of version 1 or before"):
        load_checkpoint(root, 1, rolled.policy)


def test_another_rank_is_refused(rolled, tmp_path):
    root = tmp_path / "checkpoints"
    save_checkpoint(root, 0, rolled.policy, keep=2)
    other = make_policy(tmp_path, **{"trainer.lora_rank": "4"})
    with pytest.raises(InputError, match="another adapter rank"):
        load_checkpoint(root, 0, other)


def test_a_checkpoint_of_an_adapter_does_not_fit_a_run_that_trains_every_weight(rolled, tmp_path):
    """Flow-Factory pull 147: it was loaded, and bound nothing."""
    root = tmp_path / "checkpoints"
    save_checkpoint(root, 0, rolled.policy, keep=2)
    full = make_policy(tmp_path, **{"trainer.train": "full"})
    with pytest.raises(InputError, match=r"of another model, or of another trainer\.train"):
        load_checkpoint(root, 0, full)


def test_a_full_disk_leaves_the_last_checkpoint(rolled, tmp_path, monkeypatch):
    root = tmp_path / "checkpoints"
    save_checkpoint(root, 1, rolled.policy, keep=2)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TryAgainError, match="disk full while writing"):
        save_checkpoint(root, 2, rolled.policy, keep=2)
    monkeypatch.undo()
    assert [path.name for path in root.iterdir()] == ["1"]
    assert load_checkpoint(root, 2, rolled.policy) == 1


def test_old_checkpoints_go(rolled, tmp_path):
    root = tmp_path / "checkpoints"
    for version in range(4):
        save_checkpoint(root, version, rolled.policy, keep=2)
    assert sorted(path.name for path in root.iterdir()) == ["2", "3"]
