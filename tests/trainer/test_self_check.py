"""The start-up self-check: what it prints, and each way in which it refuses."""

import logging
import re

import pytest
import torch
from msgspec import structs

from spotlightd.config import load
from spotlightd.errors import InputError
from spotlightd.trainer import memory, self_check
from spotlightd.trainer.actions import Actions
from spotlightd.trainer.crew import Crew
from spotlightd.trainer.ranks import Ranks
from spotlightd.trainer.ratio_check import Judge, RatioCheck
from spotlightd.trainer.settings import TrainerSettings
from spotlightd.trainer.update import train_on
from spotlightd.wire.training import ProducerDifference
from tests.trainer.conftest import Rolled

REWARDS = [[0.0, 1.0, 0.5]]


def quiet(_: float) -> None:
    pass


@pytest.fixture
def started(rolled: Rolled, tmp_path):
    """Return (actions, settings, configuration) of a trainer that published version 0."""
    config, _ = load(None, {"store.state_dir": f'"{tmp_path}"'}, {})
    settings = TrainerSettings(config, str(tmp_path), "", "", "", "", -1)
    actions = Actions(settings, rolled.policy)
    actions.publish(0)
    return actions, settings, config


def test_everything_that_is_checked_is_printed(started, caplog):
    actions, settings, config = started
    caplog.set_level(logging.INFO)
    self_check.check_policy_file(actions, settings, 0)
    self_check.self_check(Crew(actions), config)
    lines = [r.getMessage() for r in caplog.records if r.name == self_check.__name__]
    assert len(lines) == 5 and all(line.startswith("self-check ok: ") for line in lines)
    text = "\n".join(lines)
    assert re.search(r"version 0 is \d+ tensors, bound and on disk alike, digest [0-9a-f]+", text)
    assert "clip range 0.001" in text
    assert re.search(r"sampled alone and together differ by [\d.e-]+ on average", text)
    assert "0 pairs of a group's 16 seeds share their noise" in text
    assert re.search(r"needs about \d+ MiB more per rank .* \d+ MiB are free on cpu", text)


def test_too_little_memory_is_refused_with_what_to_lower(started, monkeypatch):
    """flow_grpo issue 89: out of memory at the smallest batch, hours into a run."""
    actions, _, config = started
    need = memory.estimate(actions.policy, 64)
    parameters = sum(p.numel() for p in actions.policy.parameters.values())
    assert (need.gradients, need.optimizer) == (4 * parameters, 8 * parameters)
    assert need.activations > 0 and need.whole_blocks == 0
    monkeypatch.setattr(self_check, "free_bytes", lambda _: 1000)
    with pytest.raises(InputError, match=r"self-check failed: .* lower trainer.micro_batch"):
        self_check.self_check(Crew(actions), config)


def test_a_reseeded_generator_is_refused(started, monkeypatch):
    """UniRL pull 89: a whole group shared its noise; the reward peaked and fell."""
    actions, _, config = started
    same = self_check.standard_normal
    monkeypatch.setattr(self_check, "standard_normal", lambda seed, *rest: same(1, *rest))
    with pytest.raises(InputError, match=r"240 pairs of a group's 16 seeds share their noise"):
        self_check.self_check(Crew(actions), config)


def test_samples_with_the_same_noise_never_train(rolled):
    """flow_grpo issues 7 and 137: identical images within and across GPUs."""
    batch = rolled.batch([[0.0, 1.0, 0.5], [0.2, 0.3, 0.4]])
    batch.latents_NWLD[4] = batch.latents_NWLD[3]
    batch.next_latents_NWLD[4] = batch.next_latents_NWLD[3]
    before = {k: v.detach().clone() for k, v in rolled.policy.parameters.items()}
    with pytest.raises(InputError, match=r"share their step noise .* r1-0 and r1-1"):
        train_on(rolled.policy, batch, 1, quiet)
    assert all(torch.equal(v, before[k]) for k, v in rolled.policy.parameters.items())


def test_a_batch_dependent_model_fails_the_ratio(started, monkeypatch):
    """DanceGRPO issue 57 and verl-omni issue 334: log-probs that depend on who shares the batch."""
    actions, _, config = started
    right = actions.policy.model.velocity

    def wrong(latents, sigma, prompts, settings):
        return right(latents, sigma, prompts, settings) + 0.3 * (len(latents) - 1)

    monkeypatch.setattr(actions.policy.model, "velocity", wrong)
    with pytest.raises(InputError, match="sampled alone and together differ by"):
        self_check.self_check(Crew(actions), config)


def test_a_policy_file_that_is_not_what_trains_is_refused(started):
    """verl-omni issue 552: the adapter that was sent bound nothing; the reward stayed flat."""
    actions, settings, _ = started
    name, parameter = next(iter(actions.policy.parameters.items()))
    with torch.no_grad():
        parameter.add_(1.0)
    with pytest.raises(InputError, match=rf"1 of \d+ tensors differ, such as {re.escape(name)}"):
        self_check.check_policy_file(actions, settings, 0)


def test_ranks_that_loaded_different_weights_are_refused(rolled):
    """DanceGRPO issue 110: ranks diverged and nobody compared them."""

    class Two(Ranks):
        def collect(self, data: bytes) -> list[bytes]:
            return [data, bytes(32)]

    with pytest.raises(InputError, match=r"ranks \[1\] loaded other weights than rank 0"):
        self_check.check_equal_weights(rolled.policy.model, Two())
    self_check.check_equal_weights(rolled.policy.model, Ranks())


def test_the_first_rollouts_of_a_producer_must_agree_and_later_ones_are_warned_of(caplog):
    """verl-omni issue 280: log-probs were further apart than the clip range before training."""
    good, bad = (ProducerDifference("agent-1", d, d, 3) for d in (1e-6, 2e-3))
    with pytest.raises(InputError, match=r"refused to train: log-probs of agent-1 .* at step 3"):
        Judge(1e-3).checked((bad,))
    judge = Judge(1e-3)
    judge.checked((good,))
    assert not caplog.records
    judge.checked((bad,))
    assert "does it run the same weights and precision?" in caplog.text


def test_a_producer_with_other_weights_stops_the_first_update(rolled):
    batch = rolled.batch(REWARDS)
    with torch.no_grad():
        for name, parameter in rolled.policy.parameters.items():
            if "lora_B" in name:
                parameter.add_(0.05)
    before = {k: v.detach().clone() for k, v in rolled.policy.parameters.items()}
    with pytest.raises(InputError, match="refused to train"):
        train_on(rolled.policy, batch, 1, quiet, Judge(1e-4).checked)
    assert all(torch.equal(v, before[k]) for k, v in rolled.policy.parameters.items())


def test_tiny_clip_ranges_with_guidance_are_said(started):
    """flow_grpo issue 224: few steps and guidance 4.5 collapsed."""
    actions, _, config = started
    actions.policy.clip_range = 1e-5
    sampler = structs.replace(config.sampler, guidance_scale=4.5)
    finding = self_check._clip_range(Crew(actions), structs.replace(config, sampler=sampler))
    assert "this range clips noise" in finding.text


def test_ranks_bring_what_they_saw_together(rolled):
    """Each rank judges its own trajectories; a pair that two ranks repeat counts once."""
    batch = rolled.batch(REWARDS)
    checks = [RatioCheck(batch), RatioCheck(batch)]
    for check, rows, difference in ((checks[0], [0, 1], 0.2), (checks[1], [1, 2], 0.2)):
        check._difference_NW[rows] = difference
        check._noise_NE[rows] = torch.tensor(rows, dtype=torch.float32)[:, None]
    checks[1]._difference_NW[2] = 0.8
    other = [checks[1]._difference_NW, checks[1]._noise_NE]
    sums = [t for v in other for t in ((~v.isnan()).float(), v.nan_to_num(0.0))]

    class Two(Ranks):
        def total(self, values: torch.Tensor) -> torch.Tensor:
            return values + sums.pop(0)

    checks[0].complete(Two())
    assert checks[0].mean() == pytest.approx(0.4)
    assert checks[0]._noise_NE[:, 0].tolist() == [0.0, 1.0, 2.0]
    assert checks[0].by_producer()[0].max_abs_difference == pytest.approx(0.8)
