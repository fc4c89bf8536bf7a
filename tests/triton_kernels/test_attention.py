"""Chunked attention in plain torch against torch's own, and what it refuses."""

import pytest
import torch

from triton_kernels.attention import Attended, _obstacle, attend, attend_chunk

GENERATOR = torch.Generator().manual_seed(0)
Q = torch.randn(2, 9, 3, 64, generator=GENERATOR)
K, V = (torch.randn(2, 30, 3, 64, generator=GENERATOR) for _ in range(2))
MASK = torch.rand(2, 30, generator=GENERATOR) > 0.3


@pytest.mark.parametrize("mask", [None, MASK])
@pytest.mark.parametrize("cuts", [[], [1], [10, 10, 29]])
def test_chunks_make_up_torchs_own_attention(mask, cuts):
    carried = None
    for begin, end in zip([0, *cuts], [*cuts, 30], strict=True):
        part = slice(begin, end)
        part_mask = None if mask is None else mask[:, part]
        carried = attend_chunk(Q, K[:, part], V[:, part], key_mask=part_mask, carried=carried)
    torch.testing.assert_close(carried.out, attend(Q, K, V, key_mask=mask), rtol=2e-6, atol=2e-6)
    scores = torch.einsum("blhe,bmhe->bhlm", Q, K) / 8
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None], -torch.inf)
    torch.testing.assert_close(carried.lse, scores.logsumexp(-1), rtol=2e-6, atol=2e-6)


def test_the_order_of_chunks_does_not_matter():
    first = attend_chunk(Q, K[:, 11:], V[:, 11:], carried=attend_chunk(Q, K[:, :11], V[:, :11]))
    second = attend_chunk(Q, K[:, :11], V[:, :11], carried=attend_chunk(Q, K[:, 11:], V[:, 11:]))
    torch.testing.assert_close(first.out, second.out, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(first.lse, second.lse, rtol=2e-6, atol=2e-6)


def test_nothing_seen_is_zero_and_minus_infinity_and_merges_without_nan():
    nothing = attend_chunk(Q, K, V, key_mask=torch.zeros(2, 30, dtype=torch.bool))
    assert (nothing.out == 0).all() and (nothing.lse == -torch.inf).all()
    twice = attend_chunk(Q, K[:, :0], V[:, :0], carried=nothing)
    assert (twice.out == 0).all() and (twice.lse == -torch.inf).all()
    later = attend_chunk(Q, K, V, carried=twice)
    torch.testing.assert_close(later.out, attend(Q, K, V), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"key": K[:, :29]}, "must be"),
        ({"query": Q[:, :, :2]}, "may differ in tokens alone"),
        ({"key_mask": MASK[:, :29]}, "key_mask must be bool"),
        ({"key_mask": MASK.float()}, "key_mask must be bool"),
        ({"carried": Attended(Q, torch.zeros(2, 3, 8))}, "carried output and log-sum-exp"),
        ({"carried": Attended(Q.bfloat16(), torch.zeros(2, 3, 9))}, "carry it in float32"),
        ({"dtype": torch.float16}, "expected float32 or the query's"),
    ],
)
def test_what_does_not_fit_is_named(change, reason):
    given = {"query": Q, "key": K, "value": V} | change
    with pytest.raises(ValueError, match=reason):
        attend_chunk(**given)


def test_what_the_kernel_cannot_take_has_a_reason():
    assert _obstacle(Q, K, V) is None
    assert "heads of 32 channels" in _obstacle(*(t[..., :32] for t in (Q, K, V)))
    assert "bfloat16, torch.float32" in _obstacle(Q, K.bfloat16(), V)
    assert "no gradient" in _obstacle(Q.clone().requires_grad_(), K, V)
    with torch.no_grad():
        assert _obstacle(Q.clone().requires_grad_(), K, V) is None
