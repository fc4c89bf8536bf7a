"""Ulysses buffers: ranks that exchange them hold what attention needs, for uneven token counts."""

import pytest
import torch

from triton_kernels import ulysses
from triton_kernels.attention import attend

B, HEADS, SIZE = 2, 6, 8


def exchange(sent_by_rank):
    """Return what `all_to_all_single` would give each rank; sent_by_rank[s][r] goes from s to r."""
    ranks = range(len(sent_by_rank))
    return [torch.cat([sent_by_rank[s][r].reshape(-1) for s in ranks]) for r in ranks]


@pytest.mark.parametrize("counts", [(10,), (5, 5), (7, 0, 3), (1, 2, 3, 1, 2, 1)])
def test_sharded_attention_is_the_whole_attention(counts):
    generator = torch.Generator().manual_seed(0)
    whole = [torch.randn(B, 10, HEADS, SIZE, generator=generator) for _ in range(3)]
    shards = [tensor.split(list(counts), dim=1) for tensor in whole]
    degree, heads = len(counts), HEADS // len(counts)
    sent = [ulysses.pack_heads([kind[rank] for kind in shards], degree) for rank in range(degree)]
    attended = []
    for received in exchange(sent):
        q, k, v = ulysses.unpack_tokens(received, counts, 3, B, heads, SIZE)
        assert q.shape == (B, 10, heads, SIZE)
        attended.append(attend(q, k, v))
    per_token = B * heads * SIZE
    returned = exchange(
        [
            ulysses.pack_tokens(out, counts).split([count * per_token for count in counts])
            for out in attended
        ]
    )
    parts = [
        ulysses.unpack_heads(flat.view(degree, B, count, heads, SIZE))
        for flat, count in zip(returned, counts, strict=True)
    ]
    torch.testing.assert_close(torch.cat(parts, dim=1), attend(*whole), rtol=2e-6, atol=2e-6)


def test_what_does_not_fit_is_named():
    x = torch.zeros(B, 10, HEADS, SIZE)
    with pytest.raises(ValueError, match="4 ranks must divide H"):
        ulysses.pack_heads([x], 4)
    with pytest.raises(ValueError, match="tensors differ"):
        ulysses.pack_heads([x, x[:, :9]], 2)
    with pytest.raises(ValueError, match="expected 9 tokens"):
        ulysses.pack_tokens(x, (4, 5))
    with pytest.raises(ValueError, match=r"received \(100,\), expected"):
        ulysses.unpack_tokens(torch.zeros(100), (4, 5), 1, B, HEADS, SIZE)
    with pytest.raises(ValueError, match=r"\[P, B, L, H / P, E\]"):
        ulysses.unpack_heads(x)


def test_what_the_kernel_cannot_take_has_a_reason():
    assert ulysses._obstacle(8, torch.zeros(1)) is None
    odd = torch.zeros(1, dtype=torch.bfloat16)
    assert "no whole number of four-byte words" in ulysses._obstacle(7, odd)
    assert "no gradient" in ulysses._obstacle(8, torch.zeros(1, requires_grad=True))
