"""The weights' average: its warm-up, what it is taken over, and that it never trains."""

import pytest
import torch

from spotlightd.store.blobs import Blobs
from spotlightd.trainer.checkpoint import load_checkpoint, save_checkpoint
from spotlightd.trainer.ema import Ema, decay_at
from spotlightd.trainer.update import train_on
from tests.trainer.conftest import Rolled, make_policy


def quiet(_: float) -> None:
    pass


def test_the_decay_warms_up():
    assert [decay_at(n, 0.9) for n in (0, 1, 10)] == [0.1, 2 / 11, 11 / 20]
    assert decay_at(10_000, 0.9) == 0.9


def test_the_average_follows_each_step_and_is_swapped_in_and_out():
    live = {"w": torch.zeros(3)}
    ema = Ema(live, 0.5)
    expected = torch.zeros(3)
    for step, value in enumerate((1.0, 2.0, 3.0)):
        live["w"].fill_(value)
        ema.observe()
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
    torch.testing.assert_close(ema.averages["w"], expected)
    ema.select(True)
    ema.select(True)
    torch.testing.assert_close(live["w"], expected)
    with pytest.raises(AssertionError, match="nothing may train"):
        ema.observe()
    ema.select(False)
    assert torch.equal(live["w"], torch.full((3,), 3.0))


def test_an_update_averages_once_an_optimizer_step_and_never_a_skipped_one(tmp_path):
    """flow_grpo averaged once a micro-batch, so its decay was that of several steps."""
    flags = {"trainer.ema_decay": "0.9", "trainer.micro_batch": "1"}
    policy = make_policy(tmp_path, **flags)
    batch = Rolled(policy, Blobs(tmp_path / "blobs")).batch([[0.0, 1.0, 0.5]])
    policy.select(averages=True)
    train_on(policy, batch, 1, quiet)
    assert policy.ema.steps == 2 and not policy.ema.swapped
    moved = [n for n, p in policy.parameters.items() if not torch.equal(p, policy.ema.averages[n])]
    assert moved
    batch.advantages_N[:] = float("inf")
    assert train_on(policy, batch, 2, quiet).metrics["skipped_steps"] == 2.0
    assert policy.ema.steps == 2
    # While the average is in the model, a checkpoint still holds both where they belong.
    live = {n: p.detach().clone() for n, p in policy.parameters.items()}
    policy.select(averages=True)
    save_checkpoint(tmp_path / "checkpoints", 1, policy, keep=2)
    fresh = make_policy(tmp_path, **flags)
    assert load_checkpoint(tmp_path / "checkpoints", 1, fresh) == 1
    assert all(torch.equal(p, live[n]) for n, p in fresh.parameters.items())
    assert all(torch.equal(t, policy.ema.averages[n]) for n, t in fresh.ema.averages.items())
    assert fresh.ema.steps == 2


def test_a_checkpoint_without_an_average_begins_one(rolled, tmp_path, caplog):
    save_checkpoint(tmp_path / "checkpoints", 1, rolled.policy, keep=2)
    with torch.no_grad():
        next(iter(rolled.policy.parameters.values())).add_(1.0)
    fresh = make_policy(tmp_path, **{"trainer.ema_decay": "0.9"})
    load_checkpoint(tmp_path / "checkpoints", 1, fresh)
    assert "has no average: it begins anew" in caplog.text
    assert all(torch.equal(t, fresh.parameters[n]) for n, t in fresh.ema.averages.items())
