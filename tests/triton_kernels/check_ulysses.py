"""Ulysses buffers: every element is where the reference puts it, in every dtype."""

import pytest
import torch

from triton_kernels import ulysses
from triton_kernels.ulysses import reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16]

pytestmark = pytest.mark.usefixtures("nan_memory")


def numbered(shape, device, dtype, begin=0):
    """Return a tensor whose bit patterns are all different (but for fp16's 65,536)."""
    count = torch.Size(shape).numel()
    kind = torch.int32 if dtype == torch.float32 else torch.int16
    bits = torch.arange(begin, begin + count).remainder(30_000).to(kind)
    return bits.view(dtype).view(shape).to(device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "degree", "kinds"), [(1, 2, 1), (63, 3, 3), (81, 6, 2)])
def test_heads(device, dtype, tokens, degree, kinds):
    tensors = [
        numbered((3, tokens, 6, 32), device, dtype, begin=1000 * kind) for kind in range(kinds)
    ]
    packed = ulysses.pack_heads(tensors, degree)
    assert torch.equal(packed, reference.pack_heads(tensors, degree))
    for kind, tensor in enumerate(tensors):
        assert torch.equal(ulysses.unpack_heads(packed[:, kind]), tensor)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("counts", [(1,), (41, 40), (27, 0, 54), (21, 20, 20, 20)])
def test_tokens(device, dtype, counts):
    joined = numbered((3, sum(counts), 2, 32), device, dtype)
    packed = ulysses.pack_tokens(joined, counts)
    assert torch.equal(packed, reference.pack_tokens(joined, counts))
    assert torch.equal(ulysses.unpack_tokens(packed, counts, 1, 3, 2, 32)[0], joined)


def test_several_kinds_in_one_buffer(device):
    counts, shape = (27, 0, 54), (3, 2, 2, 32)
    received = numbered((3 * 2 * 81 * 2 * 32,), device, torch.bfloat16)
    ours = ulysses.unpack_tokens(received, counts, *shape)
    assert torch.equal(ours, reference.unpack_tokens(received, counts, shape))


def test_a_head_wider_than_one_turn(device):
    tensor = numbered((1, 5, 4, 1500), device, torch.float32)
    packed = ulysses.pack_heads([tensor], 2)
    assert torch.equal(packed, reference.pack_heads([tensor], 2))
