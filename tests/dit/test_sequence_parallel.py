"""A group of ranks computes what one process computes, for every model and degree."""

import copy

import pytest
import torch

from spotlightd.dit.joint_attention import shard_counts
from spotlightd.dit.models import load_model
from spotlightd.dit.models.qwen_ops import use_fused_ops
from spotlightd.dit.noise import Stream, standard_normal
from spotlightd.dit.sampler import Sampler
from spotlightd.dit.sequence_parallel import SequenceParallel
from spotlightd.errors import InputError
from spotlightd.models import EMBEDDED_DIR
from tests.dit.ratio import log_prob_differences
from tests.dit.sp_ranks import Ranks, TinyModel, make_request, make_transformer
from triton_kernels.denoise import NoiseKey, draw

TOLERANCE = 1e-5
DEGREES = (1, 2, 3, 4)
UNEVEN = ((3, 5), (9, 9), (1, 3))
"""Rows and columns of image tokens: 15, 81 and 3, which 4 ranks divide unevenly, or not at all."""


@pytest.fixture(scope="module", params=["embedded", "qwen", "sd3", "flux"])
def ranks(request):
    torch.set_num_threads(1)
    if request.param == "embedded":
        model = load_model(EMBEDDED_DIR)
    else:
        transformer = make_transformer(request.param)
        if request.param == "qwen":
            use_fused_ops(transformer)
        model = TinyModel(request.param, transformer)
    made = Ranks(model, max(DEGREES))
    made.plain = model
    yield made
    made.close()


def distance(a, b):
    return float((a - b).abs().max())


def run_through(ranks, requests, degrees):
    """Sample with the degree that `degrees` has for each step."""
    trajectories = [ranks.samplers[0].start(request) for request in requests]
    while not trajectories[0].done:
        trajectories = ranks.advance(degrees[trajectories[0].step_index], trajectories)
    return trajectories


@pytest.mark.parametrize("tokens", UNEVEN)
def test_velocity_is_that_of_degree_one(ranks, tokens):
    requests = [make_request(seed, tokens) for seed in (1, 2)]
    latents = torch.stack([Sampler(ranks.plain).start(r).latents_LD for r in requests])
    sigma = torch.tensor([0.9, 0.4])
    prompts = Sampler(ranks.plain).prompt_embeds([r.prompt for r in requests])
    settings = requests[0].sampler

    @torch.no_grad()
    def velocity(model):
        return model.velocity(latents, sigma, prompts, settings)

    alone = velocity(ranks.plain)
    assert alone.std() > 1e-3, "a model that says nothing agrees with everything"
    for degree in DEGREES:
        for found in ranks.run(degree, lambda rank: velocity(ranks.models[rank])):
            assert distance(found, alone) < TOLERANCE, degree


def test_trajectories_are_those_of_degree_one_even_when_the_degree_changes_at_each_step(ranks):
    requests = [make_request(seed, (3, 5)) for seed in (1, 2, 3)]
    alone = run_through(ranks, requests, [1] * 6)
    assert all(trajectory.window_log_probs for trajectory in alone)
    for degrees in ([2] * 6, [3] * 6, [4] * 6, [1, 4, 2, 3, 1, 2], [3, 2, 4, 1, 3, 4]):
        for got, wanted in zip(run_through(ranks, requests, degrees), alone, strict=True):
            assert distance(got.latents_LD, wanted.latents_LD) < TOLERANCE, degrees
            for ours, theirs in zip(got.window_latents, wanted.window_latents, strict=True):
                assert distance(ours, theirs) < TOLERANCE, degrees
            assert got.window_log_probs == pytest.approx(wanted.window_log_probs, abs=1e-5)


@pytest.mark.parametrize("degree", [2, 3])
def test_the_ratio_is_one_for_a_trainer_that_computes_alone(ranks, degree):
    requests = [make_request(seed, (3, 5)) for seed in (1, 2, 3)]
    rolled = run_through(ranks, requests, [degree] * 6)
    assert log_prob_differences(ranks.plain, rolled).mean() < TOLERANCE


def test_a_member_left_in_mid_step_goes_on_alone(ranks):
    """Whoever holds the latents of a boundary needs nobody else."""
    trajectory = ranks.samplers[0].start(make_request(5, (3, 5)))
    alone = run_through(ranks, [trajectory.request], [1] * 6)[0]
    (trajectory,) = ranks.advance(4, [trajectory])
    (trajectory,) = ranks.advance(2, [trajectory])
    survivor = ranks.samplers[3]
    while not trajectory.done:
        survivor.advance([trajectory])
    assert distance(trajectory.latents_LD, alone.latents_LD) < TOLERANCE


@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("tokens", [15, 81, 3])
def test_noise_of_the_shards_is_that_of_the_whole_bit_for_bit(degree, tokens):
    like = torch.empty(2, tokens, 64)
    seeds, steps = [7, 2**63 + 1], [3, 5]
    whole = draw(NoiseKey(seeds, steps, Stream.SDE), like)
    counts = shard_counts(tokens, degree)
    starts = [sum(counts[:rank]) for rank in range(degree)]
    shards = [
        draw(NoiseKey(seeds, steps, Stream.SDE, 64 * start), like[:, :count])
        for start, count in zip(starts, counts, strict=True)
    ]
    assert torch.equal(torch.cat(shards, dim=1), whole)
    first = [
        standard_normal(7, 0, Stream.INITIAL, (count, 64), 64 * start)
        for start, count in zip(starts, counts, strict=True)
    ]
    assert torch.equal(torch.cat(first), standard_normal(7, 0, Stream.INITIAL, (tokens, 64)))


@pytest.mark.parametrize("tokens", [0, 1, 3, 15, 81, 4096])
def test_shards_are_contiguous_and_differ_by_one_at_most(tokens):
    for degree in range(1, 9):
        counts = shard_counts(tokens, degree)
        assert sum(counts) == tokens and len(counts) == degree
        assert max(counts) - min(counts) <= 1 and list(counts) == sorted(counts, reverse=True)


def test_a_batch_changes_none_of_its_members(ranks):
    """Packing invariance: alone, or with others that are at other steps."""
    requests = [make_request(seed, (3, 5)) for seed in range(4)]
    for degree in (2, 3):
        alone = [run_through(ranks, [request], [degree] * 6)[0] for request in requests]
        packed = [ranks.samplers[0].start(request) for request in requests]
        for start, trajectory in enumerate(packed):
            for _ in range(start):
                (trajectory,) = ranks.advance(degree, [trajectory])
            packed[start] = trajectory
        while going := [t for t in packed if not t.done]:
            done = {t.request.request_id: t for t in ranks.advance(degree, going)}
            packed = [done.get(t.request.request_id, t) for t in packed]
        for got, wanted in zip(packed, alone, strict=True):
            assert distance(got.latents_LD, wanted.latents_LD) < TOLERANCE
            assert got.window_log_probs == pytest.approx(wanted.window_log_probs, abs=1e-5)


@pytest.mark.parametrize("kind", ["qwen", "sd3", "flux"])
@torch.no_grad()
def test_our_processors_compute_what_diffusers_own_do(kind):
    plain = TinyModel(kind, make_transformer(kind))
    ours = copy.deepcopy(plain)
    parallel = SequenceParallel(ours.transformer)
    request = make_request(1, (3, 5))
    latents = torch.randn(1, 15, 64, generator=torch.Generator().manual_seed(0))
    arguments = (latents, torch.tensor([0.7]), plain.encode_prompts(["a"]), request.sampler)
    assert distance(ours.velocity(*arguments), plain.velocity(*arguments)) < TOLERANCE
    parallel.remove()
    assert distance(ours.velocity(*arguments), plain.velocity(*arguments)) < TOLERANCE


@torch.no_grad()
def test_masked_text_is_attended_to_by_nobody():
    """Qwen-Image's padded prompts, at a degree that divides the heads and one that does not."""
    ranks = Ranks(TinyModel("qwen", make_transformer("qwen")), 3)
    latents = torch.randn(2, 15, 64, generator=torch.Generator().manual_seed(0))
    text = torch.randn(2, 7, 24, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[1, 4:] = False

    def velocity(rank, text=text):
        with torch.no_grad():
            return ranks.models[rank].transformer(
                hidden_states=latents,
                encoder_hidden_states=text,
                encoder_hidden_states_mask=mask,
                timestep=torch.tensor([0.9, 0.5]),
                img_shapes=[[(1, 3, 5)]] * 2,
                return_dict=False,
            )[0]

    other = text.clone()
    other[1, 4:] += 1
    alone = velocity(0)
    for degree in (2, 3):
        for found in ranks.run(degree, lambda rank: velocity(rank, other)):
            assert distance(found, alone) < TOLERANCE
    ranks.close()


def test_models_that_cannot_be_shared_are_named():
    with pytest.raises(InputError, match="Linear has no sequence parallelism"):
        SequenceParallel(torch.nn.Linear(1, 1))
    transformer = make_transformer("flux")
    transformer.transformer_blocks[0].attn.set_processor(type("Odd", (), {})())
    with pytest.raises(InputError, match="Odd cannot be shared"):
        SequenceParallel(transformer)


def test_training_through_a_group_is_refused():
    ranks = Ranks(TinyModel("flux", make_transformer("flux")), 2)

    def train(rank):
        model = ranks.models[rank]
        model.transformer.requires_grad_(True)
        request, prompts = make_request(1, (3, 5)), model.encode_prompts(["a"])
        with pytest.raises(ValueError, match="no gradient"):
            model.velocity(torch.zeros(1, 15, 64), torch.tensor([0.5]), prompts, request.sampler)

    ranks.run(2, train)
    ranks.close()
