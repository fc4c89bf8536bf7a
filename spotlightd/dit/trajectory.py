"""A trajectory on its way from noise to image, and its form on the wire.

The wire form is safetensors: tensors without code, sizes checked before anything is built.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.numpy import save
from safetensors.torch import load
from torch import Tensor

from spotlightd.errors import InputError
from spotlightd.wire.codec import Buffer
from spotlightd.wire.sampling import Request, SamplerSettings

FloatArray = npt.NDArray[np.floating]


@dataclass
class Trajectory:
    """State at a step boundary, with all that the trainer needs of the steps before.

    Invariant: `window_*` have one entry for each stochastic step below `step_index`, in order.
    """

    request: Request
    latents_LD: Tensor
    """fp32."""
    step_index: int = 0
    """Denoising steps done."""
    window_latents: list[Tensor] = field(default_factory=list)
    """[L, D] fp32 before each stochastic step."""
    window_next_latents: list[Tensor] = field(default_factory=list)
    """[L, D] fp32 after it."""
    window_log_probs: list[float] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.step_index == self.request.sampler.num_steps


def stochastic_steps(settings: SamplerSettings) -> tuple[int, ...]:
    """Return the window's steps that keep noise: one to sigma 0, or with eta 0, is an ODE step."""
    if settings.noise_level == 0:
        return ()
    sigmas = settings.sigmas
    return tuple(i for i in settings.sde_window if i < settings.num_steps and sigmas[i + 1] > 0)


def encode_trajectory(trajectory: Trajectory) -> bytes:
    """Return safetensors with `latents`, `step_index`, and the window's three arrays [W, ...]."""
    # numpy's arrays, because commits after every step must cost next to nothing.
    shape = tuple(trajectory.latents_LD.shape)
    return save(
        {
            "latents": _array(trajectory.latents_LD),
            "step_index": np.array(trajectory.step_index),
            "window_latents": _stack(trajectory.window_latents, shape),
            "window_next_latents": _stack(trajectory.window_next_latents, shape),
            "window_log_probs": np.array(trajectory.window_log_probs, dtype=np.float64),
        }
    )


def _array(tensor: Tensor) -> FloatArray:
    return np.ascontiguousarray(tensor.detach().cpu().numpy())


def _stack(tensors: Sequence[Tensor], shape: tuple[int, ...]) -> FloatArray:
    if not tensors:
        return np.zeros((0, *shape), np.float32)
    return np.stack([_array(tensor) for tensor in tensors])


def decode_trajectory(data: Buffer, request: Request, shape: tuple[int, int]) -> Trajectory:
    """Read what `encode_trajectory` wrote.

    Args:
        data: wire form.
        request: the request that it belongs to; its window says how much must be there.
        shape: (L, D) of the model's latents.

    Raises:
        InputError: malformed, of another shape or step, or with a value that is not finite.
    """
    try:
        tensors = load(bytes(data))
        step_index = int(tensors["step_index"].item())
        latents = tensors["latents"]
        before, after = tensors["window_latents"], tensors["window_next_latents"]
        log_probs = tensors["window_log_probs"]
    except (SafetensorError, KeyError, RuntimeError, ValueError, OverflowError) as error:
        raise InputError(f"trajectory of {request.request_id} is malformed: {error!r}") from None
    sampler = request.sampler
    done = sum(1 for step in stochastic_steps(sampler) if step < step_index)
    expected = {"latents": shape, "window_latents": (done, *shape), "window_log_probs": (done,)}
    found = {
        "latents": tuple(latents.shape),
        "window_latents": tuple(before.shape),
        "window_log_probs": tuple(log_probs.shape),
    }
    in_range = 0 <= step_index <= sampler.num_steps
    if found != expected or after.shape != before.shape or not in_range:
        raise InputError(
            f"trajectory of {request.request_id} at step {step_index} has shapes {found}, "
            f"expected {expected} and a step in 0..{sampler.num_steps}"
        )
    narrow = any(t.dtype != torch.float32 for t in (latents, before, after))
    if narrow or log_probs.dtype != torch.float64:
        raise InputError(
            f"trajectory of {request.request_id}: latents must be float32, log-probs float64"
        )
    if not all(bool(t.isfinite().all()) for t in (latents, before, after, log_probs)):
        raise InputError(f"trajectory of {request.request_id} holds values that are not finite")
    return Trajectory(
        request, latents, step_index, list(before), list(after), [float(p) for p in log_probs]
    )
