"""Makes diffusers' Qwen-Image transformer compute its blocks with `triton_kernels`.

What is computed stays the same, and so do parameters and their names: adapters, saving and loading
do not notice. On a CPU the ops are plain torch, so rollouts and training take this path everywhere.
"""

from typing import Any

import torch
from diffusers.models.transformers.transformer_qwenimage import (
    QwenDoubleStreamAttnProcessor2_0,
    QwenImageTransformerBlock,
)
from torch import Tensor

from triton_kernels import adaln
from triton_kernels.attention import attend
from triton_kernels.qk_norm_rope import Tokens, qk_norm_rope

Rotations = tuple[Tensor, Tensor]


def use_fused_ops(transformer: Any) -> None:
    """Change the blocks of a `QwenImageTransformer2DModel` in place."""
    for block in transformer.transformer_blocks:
        block.__class__ = FusedBlock
        block.attn.set_processor(FusedAttention())
        block.is_last = block is transformer.transformer_blocks[-1]


class FusedAttention(QwenDoubleStreamAttnProcessor2_0):
    """Joint attention of text and image, with norm, rotation and concatenation in one op."""

    attend = staticmethod(attend)
    """A sequence-parallel group puts its own in this place (`spotlightd.dit.sequence_parallel`)."""

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        encoder_hidden_states_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        image_rotary_emb: Rotations | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return attention output of (image, text), each [B, L, C].

        Args:
            hidden_states, encoder_hidden_states: image and text, [B, L, C].
            encoder_hidden_states_mask: bool [B, L_text], False for padding; None for no padding.
            image_rotary_emb: complex [L, E / 2] of image and text.

        Raises:
            ValueError: there is no text, or a mask over both was given.
        """
        if encoder_hidden_states is None or attention_mask is not None:
            raise ValueError("joint attention takes image and text, and a mask of the text alone")
        size = attn.inner_dim // attn.heads
        image_rotation, text_rotation = (
            (None, None) if image_rotary_emb is None else map(torch.view_as_real, image_rotary_emb)
        )
        image_q, image_k, image_v = (
            layer(hidden_states).view(*hidden_states.shape[:2], attn.heads, size)
            for layer in (attn.to_q, attn.to_k, attn.to_v)
        )
        text_q, text_k, text_v = (
            layer(encoder_hidden_states).view(*encoder_hidden_states.shape[:2], attn.heads, size)
            for layer in (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)
        )
        query, key = qk_norm_rope(
            Tokens(image_q, image_k, attn.norm_q.weight, attn.norm_k.weight, image_rotation),
            Tokens(
                text_q, text_k, attn.norm_added_q.weight, attn.norm_added_k.weight, text_rotation
            ),
            eps=attn.norm_q.eps,
        )
        value = torch.cat([text_v, image_v], dim=1)
        mask = _joint_mask(encoder_hidden_states_mask, hidden_states)
        joint = self.attend(query, key, value, key_mask=mask).flatten(2, 3)
        # A linear layer of a view would be one product a sample.
        text, image = (
            part.contiguous() for part in joint.split([text_q.shape[1], image_q.shape[1]], dim=1)
        )
        for layer in attn.to_out:
            image = layer(image)
        return image, attn.to_add_out(text)


class FusedBlock(QwenImageTransformerBlock):
    """A block whose norms, modulations, gates and residuals are three ops a stream.

    Nobody reads the text after the last block, so its feed-forward is left out there.
    Blocks with a second set of modulations (`zero_cond_t`, for editing) go the parent's way.
    """

    is_last: bool

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        encoder_hidden_states_mask: Tensor | None,
        temb: Tensor,
        image_rotary_emb: Rotations | None = None,
        joint_attention_kwargs: dict[str, Any] | None = None,
        modulate_index: Any = None,
    ) -> tuple[Tensor, Tensor]:
        """Return (text, image), each [B, L, C]."""
        if self.zero_cond_t or modulate_index is not None:
            return super().forward(
                hidden_states,
                encoder_hidden_states,
                encoder_hidden_states_mask,
                temb,
                image_rotary_emb,
                joint_attention_kwargs,
                modulate_index,
            )
        image, text = hidden_states, encoder_hidden_states
        image_mod = self.img_mod(temb).chunk(6, dim=-1)
        text_mod = self.txt_mod(temb).chunk(6, dim=-1)
        image_attended, text_attended = self.attn(
            hidden_states=adaln.modulate(image, image_mod[1], image_mod[0], eps=self.img_norm1.eps),
            encoder_hidden_states=adaln.modulate(
                text, text_mod[1], text_mod[0], eps=self.txt_norm1.eps
            ),
            encoder_hidden_states_mask=encoder_hidden_states_mask,
            image_rotary_emb=image_rotary_emb,
            **(joint_attention_kwargs or {}),
        )
        image = _feed_forward(image, image_attended, image_mod, self.img_mlp, self.img_norm2.eps)
        if not self.is_last:
            text = _feed_forward(text, text_attended, text_mod, self.txt_mlp, self.txt_norm2.eps)
        return _within_fp16(text), _within_fp16(image)


def _feed_forward(
    residual: Tensor, attended: Tensor, modulation: tuple[Tensor, ...], mlp: Any, eps: float
) -> Tensor:
    """Close the attention's residual, and run the feed-forward and its own.

    `modulation` is shift, scale and gate of the attention, then of the feed-forward.
    """
    gate, shift, scale, last_gate = modulation[2:]
    hidden, modulated = adaln.gate_modulate(residual, attended, gate, scale, shift, eps=eps)
    return adaln.gate_residual(hidden, mlp(modulated), last_gate)


def _joint_mask(text_mask: Tensor | None, image: Tensor) -> Tensor | None:
    """Return bool [B, L_text + L_image]: which keys are attended to; None for all."""
    if text_mask is None:
        return None
    image_mask = text_mask.new_ones(image.shape[:2])
    return torch.cat([text_mask, image_mask], dim=1)


def _within_fp16(hidden: Tensor) -> Tensor:
    return hidden.clip(-65504, 65504) if hidden.dtype == torch.float16 else hidden
