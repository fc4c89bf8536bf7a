"""A trajectory depends on its request and the weights, not on its company or interruptions."""

import msgspec
import pytest
import torch

from spotlightd.dit.denoise import denoise_step
from spotlightd.dit.noise import Stream, standard_normal
from spotlightd.dit.sampler import Sampler, compatible
from spotlightd.dit.trajectory import encode_trajectory
from spotlightd.errors import InputError

FORMS = ("flow_sde", "flow_cps", "dance_sde")


def run(sampler, trajectories, until=None):
    steps = trajectories[0].request.sampler.num_steps if until is None else until
    while trajectories[0].step_index < steps:
        sampler.advance(trajectories)
    return trajectories


def assert_same(a, b):
    assert torch.equal(a.latents_LD, b.latents_LD)
    assert torch.equal(torch.stack(a.window_latents), torch.stack(b.window_latents))
    assert torch.equal(torch.stack(a.window_next_latents), torch.stack(b.window_next_latents))
    assert a.window_log_probs == b.window_log_probs


def assert_close(a, b, atol=1e-5):
    torch.testing.assert_close(a.latents_LD, b.latents_LD, atol=atol, rtol=0)
    assert a.window_log_probs == pytest.approx(b.window_log_probs, abs=atol)


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_of_eight_gives_each_what_it_gets_alone(model, make_request, form):
    sampler = Sampler(model)
    requests = [make_request(seed, "KEY7", form) for seed in range(8)]
    together = run(sampler, [sampler.start(r) for r in requests])
    for request, one in zip(requests, together, strict=True):
        (alone,) = run(sampler, [sampler.start(request)])
        assert_close(alone, one)


def test_the_same_batch_shape_is_bit_equal_whatever_the_company(model, make_request):
    sampler = Sampler(model)
    mine = make_request(3, "SNOW")
    first = run(sampler, [sampler.start(r) for r in (mine, make_request(4), make_request(5))])
    second = run(sampler, [sampler.start(r) for r in (make_request(8, "A"), make_request(9), mine)])
    assert_same(first[0], second[2])


@pytest.mark.parametrize("at", range(7))
def test_resuming_at_any_step_is_bit_equal_in_the_same_batch_shape(model, make_request, at):
    sampler = Sampler(model)
    requests = [make_request(seed) for seed in range(3)]
    undisturbed = run(sampler, [sampler.start(r) for r in requests])
    halfway = run(sampler, [sampler.start(r) for r in requests], until=at)
    states = [encode_trajectory(t) for t in halfway]
    newcomer = Sampler(model)
    resumed = [newcomer.start(r, s) for r, s in zip(requests, states, strict=True)]
    assert [t.step_index for t in resumed] == [at] * 3
    for a, b in zip(run(newcomer, resumed), undisturbed, strict=True):
        assert_same(a, b)


@pytest.mark.parametrize("at", [1, 4])
def test_resuming_in_another_batch_shape_is_close(model, make_request, at):
    sampler = Sampler(model)
    requests = [make_request(seed) for seed in range(5)]
    undisturbed = run(sampler, [sampler.start(r) for r in requests])
    halfway = run(sampler, [sampler.start(r) for r in requests], until=at)
    (resumed,) = run(sampler, [sampler.start(requests[2], encode_trajectory(halfway[2]))])
    assert_close(resumed, undisturbed[2])


def test_members_of_a_batch_may_be_at_different_steps(model, make_request):
    sampler = Sampler(model)
    early, late = sampler.start(make_request(1)), sampler.start(make_request(2))
    (alone,) = run(sampler, [sampler.start(make_request(1))])
    run(sampler, [late], until=3)
    sampler.advance([early, late])
    assert (early.step_index, late.step_index) == (1, 4)
    run(sampler, [early])
    assert_close(early, alone)


def test_the_window_is_stochastic_and_all_else_follows_the_ode(model, make_request):
    sampler = Sampler(model)
    request = make_request(11, window=(1,))
    trajectory = sampler.start(request)
    for step in range(3):
        before = trajectory.latents_LD
        sigmas = [torch.tensor([request.sampler.sigmas[step + d]]) for d in (0, 1)]
        prompts = sampler.prompt_embeds([request.prompt])
        velocity = model.velocity(before[None], sigmas[0], prompts, request.sampler)
        noise = standard_normal(11, step, Stream.SDE, tuple(before.shape))[None]
        form, given = ("flow_sde", {"noise_BLD": noise}) if step == 1 else ("ode", {})
        expected = denoise_step(
            form, before[None], velocity, *sigmas, 0.7, request.sampler.sigmas[1], **given
        )
        sampler.advance([trajectory])
        torch.testing.assert_close(trajectory.latents_LD, expected.next_latents[0])
    assert len(trajectory.window_log_probs) == 1


def test_a_window_over_the_last_step_yields_no_log_prob_there(model, make_request):
    sampler = Sampler(model)
    request = make_request(form="flow_cps", window=(4, 5))
    (trajectory,) = run(sampler, [sampler.start(request)])
    assert len(trajectory.window_log_probs) == 1
    assert sampler.start(request, encode_trajectory(trajectory)).done


def test_the_initial_latent_is_the_seeds(model, make_request):
    shape = model.latent_shape(32, 128)
    latents = Sampler(model).start(make_request(99)).latents_LD
    assert torch.equal(latents, standard_normal(99, 0, Stream.INITIAL, shape))


def test_replayed_log_probs_equal_those_of_the_rollout(model, make_request):
    sampler = Sampler(model)
    request = make_request(2)
    (t,) = run(sampler, [sampler.start(request)])
    prompts, table = sampler.prompt_embeds([request.prompt]), request.sampler.sigmas
    for i, step in enumerate(request.sampler.sde_window):
        sigma, after = torch.tensor([table[step]]), torch.tensor([table[step + 1]])
        x, reached = t.window_latents[i][None], t.window_next_latents[i][None]
        velocity = model.velocity(x, sigma, prompts, request.sampler)
        out = denoise_step(
            "flow_sde", x, velocity, sigma, after, 0.7, table[1], next_latents_BLD=reached
        )
        assert float(out.log_prob[0]) == pytest.approx(t.window_log_probs[i], abs=1e-6)


def test_images_are_grey_bytes_of_the_requested_size(model, make_request):
    sampler = Sampler(model)
    images = sampler.decode(run(sampler, [sampler.start(make_request(s)) for s in range(2)]))
    assert [(i.shape, i.dtype.name) for i in images] == [((32, 128, 1), "uint8")] * 2


def test_a_finished_trajectory_has_no_next_step(model, make_request):
    sampler = Sampler(model)
    done = run(sampler, [sampler.start(make_request())])
    with pytest.raises(InputError, match="is finished"):
        sampler.advance(done)


def test_latents_that_overflow_are_named(model, make_request):
    sampler = Sampler(model)
    trajectory = sampler.start(make_request(5))
    trajectory.latents_LD[0, 0] = float("inf")
    with pytest.raises(FloatingPointError, match="r-OPEN-5"):
        sampler.advance([trajectory])


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"height": 33}, "multiples of 16"), ({"guidance_scale": 4.0}, "guidance_scale")],
)
def test_settings_that_the_model_cannot_take_are_explained(model, make_request, change, reason):
    request = make_request()
    sampler_settings = msgspec.structs.replace(request.sampler, **change)
    request = msgspec.structs.replace(request, sampler=sampler_settings)
    sampler = Sampler(model)
    with pytest.raises(InputError, match=reason):
        sampler.advance([sampler.start(request)])


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [("no quotes", "double quotes"), ('"NINECHARS"', "1 to 8"), ('""', "1 to")],
)
def test_prompts_that_cannot_be_drawn_are_explained(model, make_request, prompt, reason):
    with pytest.raises(InputError, match=reason):
        Sampler(model).start(msgspec.structs.replace(make_request(), prompt=prompt))


def test_only_settings_that_share_a_forward_share_a_batch(make_request):
    settings = make_request().sampler
    assert compatible(settings, make_request(window=(1, 3)).sampler)
    for change in ({"height": 64}, {"guidance_scale": 2.0}, {"sde_form": "flow_cps"}):
        assert not compatible(settings, msgspec.structs.replace(settings, **change))
