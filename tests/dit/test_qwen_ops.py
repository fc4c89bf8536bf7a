"""The transformer with fused ops computes what diffusers' own blocks compute."""

import copy

import pytest
import torch
from diffusers import QwenImageTransformer2DModel

from spotlightd.dit.models.glyph_ocr import TRANSFORMER_CONFIG
from spotlightd.dit.models.qwen_ops import FusedAttention, FusedBlock, use_fused_ops

SIZE = {**TRANSFORMER_CONFIG, "num_layers": 2, "joint_attention_dim": 48}


@pytest.fixture(scope="module")
def plain():
    torch.manual_seed(0)
    transformer = QwenImageTransformer2DModel(**SIZE).eval()
    for name, parameter in transformer.named_parameters():
        if "norm" in name:  # ones at the start, which would hide a weight that is not used
            torch.nn.init.normal_(parameter, 1.0, 0.2)
    return transformer


@pytest.fixture
def fused(plain):
    transformer = copy.deepcopy(plain)
    use_fused_ops(transformer)
    return transformer


def velocity(transformer, mask=None, dtype=torch.float32, grad_to=None):
    generator = torch.Generator().manual_seed(1)
    latents = torch.randn(3, 81, SIZE["in_channels"], generator=generator)
    text = torch.randn(3, 15, SIZE["joint_attention_dim"], generator=generator)
    out = transformer(
        hidden_states=latents.to(dtype),
        encoder_hidden_states=text.to(dtype),
        encoder_hidden_states_mask=mask,
        timestep=torch.tensor([0.9, 0.5, 0.1], dtype=dtype),
        img_shapes=[[(1, 9, 9)]] * 3,
        return_dict=False,
    )[0]
    return out if grad_to is None else torch.autograd.grad(out.square().sum(), grad_to)


@torch.no_grad()
def test_velocities_are_bit_equal_on_a_cpu(plain, fused):
    assert torch.equal(velocity(fused), velocity(plain))


@torch.no_grad()
def test_text_that_is_masked_out_changes_nothing(plain, fused):
    mask = torch.ones(3, 15, dtype=torch.bool)
    mask[1, 9:] = False
    assert torch.equal(velocity(fused, mask), velocity(plain, mask))
    assert not torch.equal(velocity(fused, mask)[1], velocity(fused)[1])


@torch.no_grad()
def test_in_bf16_both_are_as_far_from_fp32(plain, fused):
    truth = velocity(plain)
    errors = [
        (velocity(copy.deepcopy(model).bfloat16(), dtype=torch.bfloat16).float() - truth)
        .square().mean().sqrt().item()
        for model in (fused, plain)
    ]  # fmt: skip
    assert errors[0] < 1.2 * errors[1]
    assert errors[1] > 0


def test_gradients_are_those_of_the_plain_blocks(plain, fused):
    def chosen(model):
        block = model.transformer_blocks[0]
        return [
            block.attn.to_q.weight,
            block.attn.add_k_proj.weight,
            block.attn.norm_q.weight,
            block.img_mod[1].weight,
            block.txt_mlp.net[0].proj.weight,
        ]

    ours = velocity(fused, grad_to=chosen(fused))
    expected = velocity(plain, grad_to=chosen(plain))
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * b.abs().max().item())


def test_parameters_keep_their_names(plain, fused):
    assert list(fused.state_dict()) == list(plain.state_dict())


def test_every_block_is_changed_and_a_copy_stays_so(fused):
    for block in copy.deepcopy(fused).transformer_blocks:
        assert type(block) is FusedBlock
        assert type(block.attn.processor) is FusedAttention


@torch.no_grad()
def test_blocks_with_two_modulations_go_the_parents_way():
    torch.manual_seed(0)
    plain = QwenImageTransformer2DModel(**SIZE, zero_cond_t=True).eval()
    expected = velocity(plain)
    use_fused_ops(plain)
    assert torch.equal(velocity(plain), expected)


def test_attention_without_text_is_refused(fused):
    block = fused.transformer_blocks[0]
    with pytest.raises(ValueError, match="image and text"):
        block.attn(hidden_states=torch.zeros(1, 4, 128))
