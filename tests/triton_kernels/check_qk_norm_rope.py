"""QK-norm and rotation: values and gradients equal the reference's, text and image joined."""

import pytest
import torch

from triton_kernels.qk_norm_rope import Tokens, kernel, qk_norm_rope, reference

CLOSE = dict(rtol=2e-6, atol=2e-6)
CASES = [
    # image tokens, text tokens (None: no text), heads, rotated
    (1, 1, 2, True),
    (63, 15, 3, True),
    (81, 7, 2, False),
    (81, None, 2, True),
    (5, 0, 2, True),
]

pytestmark = pytest.mark.usefixtures("nan_memory")


def stream(tokens, heads, rotated, device, dtype=torch.float32, size=64):
    generator = torch.Generator().manual_seed(tokens + heads)
    query, key = (torch.randn(3, tokens, heads, size, generator=generator) for _ in range(2))
    weights = (1 + 0.1 * torch.randn(size, generator=generator) for _ in range(2))
    angles = 10 * torch.rand(tokens, size // 2, generator=generator)
    rotation = torch.stack([angles.cos(), angles.sin()], dim=-1).to(device) if rotated else None
    return Tokens(*(t.to(device, dtype) for t in (query, key, *weights)), rotation)


def streams(case, device, dtype=torch.float32):
    image_tokens, text_tokens, heads, rotated = case
    image = stream(image_tokens, heads, rotated, device, dtype)
    if text_tokens is None:
        return image, None
    return image, stream(text_tokens, heads, rotated, device, dtype)


def wide(tokens):
    if tokens is None:
        return None
    return Tokens(*(None if tensor is None else tensor.double() for tensor in tokens))


@pytest.mark.parametrize("case", CASES)
def test_values_are_the_references(device, case):
    image, text = streams(case, device)
    truth = reference.qk_norm_rope(wide(image), wide(text), 1e-6)
    for ours, expected in zip(qk_norm_rope(image, text), truth, strict=True):
        torch.testing.assert_close(ours, expected.float(), **CLOSE)


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_the_references(device, case):
    def gradients(op, image, text):
        given = [image] if text is None else [image, text]
        leaves = [t.clone().requires_grad_() for tokens in given for t in tokens[:2]]
        made = [Tokens(*leaves[2 * i : 2 * i + 2], *tokens[2:]) for i, tokens in enumerate(given)]
        query, key = op(made[0], made[1] if text is not None else None, eps=1e-6)
        weight = torch.linspace(0.3, 1, query.shape[1], device=device, dtype=query.dtype)
        loss = (query.square() * query * weight[:, None, None]).sum() + key.square().sum() * 0.3
        return torch.autograd.grad(loss + (key * weight[:, None, None]).sum(), leaves)

    image, text = streams(case, device)
    truth = gradients(reference.qk_norm_rope, wide(image), wide(text))
    for ours, expected in zip(gradients(qk_norm_rope, image, text), truth, strict=True):
        scale = expected.abs().max().item() if expected.numel() else 1.0
        torch.testing.assert_close(ours, expected.float(), rtol=2e-6, atol=2e-6 * scale)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_fp32_and_rounded_once(device, dtype):
    """Written into fp32: the interpreter rounds to bf16 by cutting off, which GPUs do not."""
    image, text = streams((63, 15, 3, True), device, dtype)
    query, key = (torch.empty(3, 78, 3, 64, device=device) for _ in range(2))
    rotations = (image.rotation, text.rotation)
    kernel._launch((query, key), list(image[:4]), list(text[:4]), rotations, [], 1e-6)
    truth = reference.qk_norm_rope(wide(image), wide(text), 1e-6)
    torch.testing.assert_close(query, truth[0].float(), **CLOSE)
    torch.testing.assert_close(key, truth[1].float(), **CLOSE)


def test_fp16_comes_back_as_fp16(device):
    image, text = streams((63, 15, 3, True), device, torch.float16)
    for ours, truth in zip(
        qk_norm_rope(image, text), reference.qk_norm_rope(image, text, 1e-6), strict=True
    ):
        assert ours.dtype == torch.float16
        torch.testing.assert_close(ours, truth, rtol=1e-3, atol=2e-3)


def test_heads_of_128_channels(device):
    image = stream(9, 2, True, device, size=128)
    truth = reference.qk_norm_rope(wide(image), None, 1e-6)
    for ours, expected in zip(qk_norm_rope(image), truth, strict=True):
        torch.testing.assert_close(ours, expected.float(), **CLOSE)


def test_norm_weights_that_train_are_not_the_kernels_business(device):
    image = stream(9, 2, True, device)
    image.query_weight.requires_grad_()
    with pytest.raises(ValueError, match="norm weights that train"):
        qk_norm_rope(image)
