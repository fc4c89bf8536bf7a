"""QK-norm and rotation in plain torch: what it computes, and what it refuses."""

import pytest
import torch

from triton_kernels.qk_norm_rope import Tokens, _obstacle, qk_norm_rope


def stream(tokens, heads=2, size=64, angle=0.3):
    generator = torch.Generator().manual_seed(tokens)
    query, key = (torch.randn(2, tokens, heads, size, generator=generator) for _ in range(2))
    angles = angle * torch.arange(tokens)[:, None].expand(tokens, size // 2)
    rotation = torch.stack([angles.cos(), angles.sin()], dim=-1)
    return Tokens(query, key, torch.full((size,), 2.0), torch.ones(size), rotation)


def test_each_head_is_normed_on_its_own_and_turning_keeps_its_length():
    query, key = qk_norm_rope(stream(5), stream(3))
    assert query.shape == key.shape == (2, 8, 2, 64)
    torch.testing.assert_close(query.square().mean(-1), torch.full((2, 8, 2), 4.0))
    torch.testing.assert_close(key.square().mean(-1), torch.ones(2, 8, 2))


def test_neighbouring_channels_are_turned_by_the_tokens_angle():
    plain, turned = stream(4), stream(4)
    before, _ = qk_norm_rope(plain._replace(rotation=None))
    after, _ = qk_norm_rope(turned)
    x, y = before[..., 0::2], before[..., 1::2]
    angle = 0.3 * torch.arange(4)[:, None, None]
    expected = x * angle.cos() - y * angle.sin(), x * angle.sin() + y * angle.cos()
    torch.testing.assert_close(after[..., 0::2], expected[0])
    torch.testing.assert_close(after[..., 1::2], expected[1])


def test_text_comes_first_and_shards_of_the_image_are_parts_of_the_whole():
    image, text = stream(9), stream(3)
    whole, _ = qk_norm_rope(image, text)
    assert torch.equal(whole[:, :3], qk_norm_rope(text)[0])
    shard = image._replace(
        query=image.query[:, 4:], key=image.key[:, 4:], rotation=image.rotation[4:]
    )
    assert torch.equal(qk_norm_rope(shard)[0], whole[:, 3 + 4 :])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"key": torch.zeros(2, 5, 2, 32)}, r"must both be \[B, L, H, E\]"),
        ({"query_weight": torch.ones(32)}, r"expected \[64\]"),
        ({"rotation": torch.zeros(4, 32, 2)}, r"expected \(5, 32, 2\)"),
        ({"rotation": None}, "both be rotated, or neither"),
    ],
)
def test_what_does_not_fit_is_named(change, reason):
    with pytest.raises(ValueError, match=reason):
        qk_norm_rope(stream(5)._replace(**change), stream(3))


def test_streams_of_different_heads_are_refused():
    with pytest.raises(ValueError, match="may differ in tokens alone"):
        qk_norm_rope(stream(5, heads=2), stream(3, heads=3))


def test_what_the_kernel_cannot_take_has_a_reason():
    assert _obstacle([stream(5)]) is None
    assert "heads of 32 channels" in _obstacle([stream(5, size=32)])
    mixed = stream(5)._replace(query_weight=torch.ones(64, dtype=torch.bfloat16))
    assert "bfloat16, torch.float32" in _obstacle([mixed])
    trained = stream(5)._replace(query_weight=torch.ones(64, requires_grad=True))
    assert "norm weights that train" in _obstacle([trained])
