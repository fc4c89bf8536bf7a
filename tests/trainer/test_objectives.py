"""Each objective: golden values, and that every one of its terms has a gradient that helps."""

import math

import pytest
import torch

from spotlightd.store.blobs import Blobs
from spotlightd.trainer import loss
from spotlightd.trainer.micro_batches import deal
from spotlightd.trainer.update import train_on
from tests.trainer.conftest import Rolled, make_policy

REWARDS = [[0.0, 1.0, 0.5, 0.2]]


def quiet(_: float) -> None:
    pass


@pytest.mark.parametrize(
    ("beta", "advantage", "expected"),
    [
        # clean 1, noise -1, sigma 1/2: noisy 0, so a velocity v lies |1 + v / 2| from the data.
        # now -1, old -3: positive -1, negative -5; distances 1/2 and 3/2.
        (1.0, 5.0, 5 * 0.5),
        (1.0, -5.0, 5 * 1.5),
        (1.0, 0.0, 5 * (0.5 + 1.5) / 2),
        # beta 1/2: positive -2 and exact, negative -4, 1 away; the loss is divided by beta.
        (0.5, 5.0, 0.0),
        (0.5, -2.5, 10 * 0.75 * 1.0),
        (0.5, -50.0, 10 * 1.0),
    ],
)
def test_nft_meets_values_worked_out_by_hand(beta, advantage, expected):
    one = torch.ones(1, 3, 2)
    found = loss.nft_loss(
        -one, -3 * one, 0 * one, one, torch.tensor([0.5]), torch.tensor([advantage]), 5.0, beta
    )
    assert found.tolist() == pytest.approx([expected], abs=1e-6)


def gradient(function, value):
    """Return the gradient of a loss's sum with respect to `value`."""
    value = value.clone().requires_grad_()
    function(value).sum().backward()
    assert value.grad is not None
    return value.grad


def test_nfts_two_terms_pull_towards_good_rollouts_and_away_from_bad_ones():
    draw = torch.Generator().manual_seed(1)
    old, clean, noise = (torch.randn(2, 4, 3, generator=draw) for _ in range(3))
    sigma = torch.tensor([0.7, 0.7])
    noisy = 0.3 * clean + 0.7 * noise
    grads = [
        gradient(
            lambda v, a=a: loss.nft_loss(
                v, old, noisy, clean, sigma, torch.full((2,), a), 5.0, 1.0
            ),
            old,
        )
        for a in (5.0, -5.0, 0.0)
    ]
    towards = old - (noise - clean)
    assert (grads[0] * towards).sum() > 0 and (grads[1] * towards).sum() < 0
    assert grads[2].abs().max() < 1e-5  # at the old policy a mean rollout changes nothing


def test_guard_and_dppo_and_both_divergences_have_gradients():
    draw = torch.Generator().manual_seed(2)
    mean, old = (torch.randn(2, 4, 3, generator=draw) for _ in range(2))
    zeros, up = torch.zeros(2), torch.ones(2)
    std, root = torch.tensor([0.6]), torch.tensor([0.3])
    scale = torch.full((2, 1, 1), 0.2)
    guard = gradient(lambda m: loss.grpo_guard_loss(zeros, zeros, m, old, std, root, up, 1e9), mean)
    assert bool((guard != 0).all())
    dppo = gradient(lambda p: loss.flow_dppo_loss(p, zeros, old, old, scale, up, 1e-5), zeros)
    assert torch.equal(dppo, -up)
    for divergence in (
        lambda m: loss.gaussian_kl(m, old, scale),
        lambda m: loss.velocity_distance(m, old),
    ):
        assert bool((gradient(divergence, mean) * (mean - old) > 0).all())


def test_dppo_drops_only_who_spent_the_kl_and_moved_as_pushed():
    mean, old, scale = torch.ones(4, 1, 1), torch.zeros(4, 1, 1), torch.ones(4, 1, 1)
    log_prob = torch.tensor([0.1, -0.1, 0.1, -0.1])
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0])

    def dppo(p):
        return loss.flow_dppo_loss(p, torch.zeros(4), mean, old, scale, advantages, 0.5)

    grads = gradient(dppo, log_prob)
    assert [bool(g != 0) for g in grads] == [False, True, True, False]


FLAGS = {
    "flow_grpo": {},
    "grpo_guard": {"sampler.sde_form": "flow_sde"},
    "flow_dppo": {},
    "nft": {},
}


@pytest.mark.parametrize("objective", FLAGS)
def test_an_update_lowers_its_own_objective_and_micro_batches_change_nothing(tmp_path, objective):
    flags = {"trainer.objective": objective, "trainer.kl_beta": "0.1"} | FLAGS[objective]
    gradients = []
    for size in (2, 4):
        sizes = {"trainer.micro_batch": str(size), "trainer.optimizer_steps": "1"}
        policy = make_policy(tmp_path, **flags, **sizes)
        form = FLAGS[objective].get("sampler.sde_form", "flow_cps")
        batch = Rolled(policy, Blobs(tmp_path / "blobs"), form).batch(REWARDS)
        losses = [train_on(policy, batch, 3, quiet).metrics["loss"] for _ in range(2)]
        assert losses[1] < losses[0]
        assert all(map(math.isfinite, losses))
        gradients.append(losses)
    assert gradients[0] == pytest.approx(gradients[1], abs=1e-5, rel=1e-4)


def test_a_kl_inside_no_grad_would_be_noticed(rolled):
    """Without advantages only the KL is left, and it must move a policy that has left its base."""
    batch = rolled.batch(REWARDS)
    batch.advantages_N.zero_()
    with torch.no_grad():
        for name, parameter in rolled.policy.parameters.items():
            if "lora_B" in name:
                parameter.add_(0.02)
    found = [train_on(rolled.policy, batch, 3, quiet).metrics for _ in range(3)]
    assert found[0]["grad_norm"] > 0
    assert found[2]["kl"] < 0.9 * found[0]["kl"]


@pytest.mark.parametrize(("trajectories", "ranks"), [(4, 1), (5, 2), (1, 4), (7, 3)])
def test_every_rank_gets_the_same_number_of_calls_and_no_pair_counts_twice(trajectories, ranks):
    part = torch.arange(10, 10 + trajectories)
    dealt = [deal(part, 3, 2, rank, ranks) for rank in range(ranks)]
    assert len({len(micro_batches) for micro_batches in dealt}) == 1
    shares: dict[tuple[int, int], float] = {}
    for pairs in (p for micro_batches in dealt for p in micro_batches):
        for row, weight in zip(pairs.rows.tolist(), pairs.weights.tolist(), strict=True):
            shares[row, pairs.position] = shares.get((row, pairs.position), 0.0) + weight
    assert len(shares) == trajectories * 3
    assert list(shares.values()) == pytest.approx([1 / (trajectories * 3)] * len(shares))
