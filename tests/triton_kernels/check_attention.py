"""Chunked attention: output and log-sum-exp equal the reference's, in any number of chunks."""

import pytest
import torch

from triton_kernels.attention import Attended, attend_chunk, kernel, reference

CLOSE = dict(rtol=2e-6, atol=2e-6)
CASES = [
    # queries, keys, heads, head size, masked
    (1, 1, 2, 64, False),
    (63, 81, 2, 64, True),
    (81, 63, 1, 128, True),
    (5, 130, 2, 64, False),
]

pytestmark = pytest.mark.usefixtures("nan_memory")


def inputs(case, device, dtype=torch.float32):
    queries, keys, heads, size, masked = case
    generator = torch.Generator().manual_seed(queries)
    q = torch.randn(3, queries, heads, size, generator=generator)
    k, v = (torch.randn(3, keys, heads, size, generator=generator) for _ in range(2))
    mask = None
    if masked:  # text: one sample whole, one padded, one with nothing at all
        mask = torch.ones(3, keys, dtype=torch.bool)
        mask[1, 7:20] = False
        mask[2] = False
        mask = mask.to(device)
    return *(tensor.to(device, dtype) for tensor in (q, 2 * k, v)), mask


def truth(q, k, v, mask):
    q, k, v = (tensor.double() for tensor in (q, k, v))
    return reference.attend_chunk(q, k, v, mask, None, q.shape[3] ** -0.5)


def assert_close(ours, expected):
    torch.testing.assert_close(ours.out.float(), expected.out.float(), **CLOSE)
    torch.testing.assert_close(ours.lse, expected.lse.float(), **CLOSE)


@pytest.mark.parametrize("case", CASES)
def test_one_chunk_is_the_references(device, case):
    q, k, v, mask = inputs(case, device)
    assert_close(attend_chunk(q, k, v, key_mask=mask), truth(q, k, v, mask))


@pytest.mark.parametrize("cuts", [[40], [0, 1, 80, 81], [20, 20, 50]])
def test_uneven_and_empty_chunks_make_up_the_whole(device, cuts):
    q, k, v, mask = inputs((63, 81, 2, 64, True), device)
    carried = None
    for begin, end in zip([0, *cuts], [*cuts, 81], strict=True):
        part = slice(begin, end)
        carried = attend_chunk(q, k[:, part], v[:, part], key_mask=mask[:, part], carried=carried)
    assert_close(carried, truth(q, k, v, mask))


def test_an_empty_chunk_leaves_what_was_carried(device):
    q, k, v, mask = inputs((63, 81, 2, 64, True), device)
    before = attend_chunk(q, k, v, key_mask=mask)
    after = attend_chunk(q, k[:, :0], v[:, :0], carried=before)
    assert torch.equal(after.out, before.out)
    torch.testing.assert_close(after.lse, before.lse, **CLOSE)


def test_rows_that_saw_nothing_are_zero_and_not_nan(device):
    q, k, v, _ = inputs((63, 81, 2, 64, True), device)
    nothing = torch.zeros(3, 81, dtype=torch.bool, device=device)
    out, lse = attend_chunk(q, k, v, key_mask=nothing)
    assert (out == 0).all() and (lse == -torch.inf).all()
    later = attend_chunk(q, k, v, carried=Attended(out, lse))
    assert_close(later, truth(q, k, v, None))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(device, dtype):
    """Interpreted: inputs are widened before the products, which it would get wrong in bf16.

    Compiled, the weights of the second product are rounded to the inputs' dtype.
    """
    q, k, v, mask = inputs((63, 81, 2, 64, True), device, dtype)
    ours = attend_chunk(q, k, v, key_mask=mask)
    expected = truth(q, k, v, mask)
    if device.type == "cpu":
        assert_close(ours, expected)
    else:
        step = torch.finfo(dtype).eps
        torch.testing.assert_close(ours.out, expected.out.float(), rtol=step, atol=step)
        torch.testing.assert_close(ours.lse, expected.lse.float(), **CLOSE)


def test_the_last_chunk_may_be_rounded(device):
    q, k, v, _ = inputs((63, 81, 2, 64, False), device, torch.float16)
    out, _ = attend_chunk(q, k, v, dtype=torch.float16)
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), truth(q, k, v, None).out.float(), rtol=2e-3, atol=1e-3)


def test_every_configuration_is_one_that_is_compiled_ahead_of_time():
    assert {size for _, size in kernel.BLOCKS} == set(kernel.HEAD_SIZES)
    assert {size for size, _ in kernel.BLOCKS} == {dtype.itemsize for dtype in kernel.FLOATS}
