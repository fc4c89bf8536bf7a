"""The wire form of a trajectory: exact, and refused when it is not what the request says."""

import pytest
import torch
from safetensors.torch import load, save

from spotlightd.dit.trajectory import Trajectory, decode_trajectory, encode_trajectory
from spotlightd.errors import InputError

SHAPE = (4, 8)


@pytest.fixture
def request_(make_request):
    return make_request(window=(0, 2))


@pytest.fixture
def trajectory(request_):
    rows = torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(0))
    return Trajectory(request_, rows[0], 3, list(rows[1:3]), list(rows[3:5]), [0.1, -1e-9])


def test_what_is_encoded_comes_back_bit_for_bit(trajectory, request_):
    back = decode_trajectory(encode_trajectory(trajectory), request_, SHAPE)
    assert torch.equal(back.latents_LD, trajectory.latents_LD)
    assert back.window_log_probs == trajectory.window_log_probs
    assert back.step_index == 3
    for name in ("window_latents", "window_next_latents"):
        assert torch.equal(torch.stack(getattr(back, name)), torch.stack(getattr(trajectory, name)))


def test_a_memoryview_does_as_well_as_bytes(trajectory, request_):
    view = memoryview(encode_trajectory(trajectory))
    assert decode_trajectory(view, request_, SHAPE).step_index == 3


def test_before_the_first_step_the_window_is_empty(request_):
    fresh = Trajectory(request_, torch.zeros(SHAPE))
    assert decode_trajectory(encode_trajectory(fresh), request_, SHAPE).window_latents == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("latents", torch.zeros(4, 9)),
        ("latents", torch.full(SHAPE, torch.nan)),
        ("latents", torch.zeros(SHAPE, dtype=torch.float64)),
        ("step_index", torch.tensor(1)),
        ("step_index", torch.tensor(99)),
        ("step_index", torch.tensor(-1)),
        ("step_index", torch.tensor([3, 3])),
        ("step_index", torch.tensor(torch.inf)),
        ("window_latents", torch.zeros(1, *SHAPE)),
        ("window_next_latents", torch.zeros(3, *SHAPE)),
        ("window_next_latents", torch.full((2, *SHAPE), torch.inf)),
        ("window_log_probs", torch.tensor([0.0, torch.nan], dtype=torch.float64)),
        ("window_log_probs", torch.zeros(2)),
        ("window_log_probs", torch.zeros(3, dtype=torch.float64)),
    ],
)
def test_a_trajectory_that_does_not_fit_its_request_is_refused(trajectory, request_, name, value):
    tensors = load(encode_trajectory(trajectory))
    tensors[name] = value
    with pytest.raises(InputError, match=f"trajectory of {request_.request_id}"):
        decode_trajectory(save(tensors), request_, SHAPE)


@pytest.mark.parametrize("step", [-1, 7])
def test_a_step_outside_the_schedule_is_refused_though_all_shapes_fit(make_request, step):
    request = make_request(window=())
    tensors = load(encode_trajectory(Trajectory(request, torch.zeros(SHAPE))))
    tensors["step_index"] = torch.tensor(step)
    with pytest.raises(InputError, match=r"a step in 0\.\.6"):
        decode_trajectory(save(tensors), request, SHAPE)


def test_a_missing_tensor_is_refused(trajectory, request_):
    tensors = load(encode_trajectory(trajectory))
    del tensors["window_log_probs"]
    with pytest.raises(InputError, match="window_log_probs"):
        decode_trajectory(save(tensors), request_, SHAPE)


def test_no_truncation_gets_through(trajectory, request_):
    data = encode_trajectory(trajectory)
    for length in (0, 7, 8, 100, len(data) // 2, len(data) - 1):
        with pytest.raises(InputError, match="malformed"):
            decode_trajectory(data[:length], request_, SHAPE)
