"""Attention processors of SD3 and FLUX whose last op is a plain function of (q, k, v).

diffusers' own reach torch's attention in ways that a group of ranks cannot step into. These compute
the same, with norm, rotation and concatenation in one op, and call `attend`, which
`spotlightd.dit.sequence_parallel` replaces. Qwen-Image's is in `models/qwen_ops.py`.

Legend: B samples, L tokens, C channels, H heads, E channels of a head.
"""

from typing import Any

import torch
from diffusers.models.attention_processor import JointAttnProcessor2_0
from diffusers.models.transformers.transformer_flux import FluxAttnProcessor
from torch import Tensor

from triton_kernels.attention import attend
from triton_kernels.qk_norm_rope import Tokens, qk_norm_rope

Projected = tuple[Tensor, Tensor, Tensor]


class Sd3Attention(JointAttnProcessor2_0):
    """Joint attention of SD3; of the image alone where a block attends to it once more."""

    attend = staticmethod(attend)

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return attention output of the image [B, L, C], and of the text where there is one.

        Raises ValueError for a mask: SD3 has none.
        """
        if attention_mask is not None:
            raise ValueError("SD3's joint attention takes no mask")
        image = _project(attn, hidden_states)
        text = None if encoder_hidden_states is None else _project_text(attn, encoder_hidden_states)
        joint = self.attend(*_joint(attn, image, text, None)).flatten(2, 3)
        if text is None:
            return attn.to_out[1](attn.to_out[0](joint))
        text_out, image_out = _split(joint, text)
        if not attn.context_pre_only:
            text_out = attn.to_add_out(text_out)
        return attn.to_out[1](attn.to_out[0](image_out)), text_out


class FluxAttention(FluxAttnProcessor):
    """Joint attention of FLUX's double blocks; in single blocks one stream holds both."""

    attend = staticmethod(attend)

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        image_rotary_emb: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return attention output of (image, text), or of the one stream, each [B, L, C].

        Args:
            image_rotary_emb: cosine and sine of text and image, [L, E], each value twice.

        Raises:
            ValueError: a mask was given, or projections were fused.
        """
        if attention_mask is not None or attn.fused_projections:
            raise ValueError("FLUX's attention takes no mask here, and no fused projections")
        rotation = None
        if image_rotary_emb is not None:
            rotation = torch.stack([part[:, ::2] for part in image_rotary_emb], dim=-1)
        image = _project(attn, hidden_states)
        text = None if encoder_hidden_states is None else _project_text(attn, encoder_hidden_states)
        joint = self.attend(*_joint(attn, image, text, rotation)).flatten(2, 3)
        if text is None:
            return joint
        text_out, image_out = _split(joint, text)
        return attn.to_out[1](attn.to_out[0](image_out)), attn.to_add_out(text_out)


def _project(attn: Any, hidden: Tensor) -> Projected:
    query, key, value = (layer(hidden) for layer in (attn.to_q, attn.to_k, attn.to_v))
    return tuple(part.unflatten(-1, (attn.heads, -1)) for part in (query, key, value))


def _project_text(attn: Any, hidden: Tensor) -> Projected:
    layers = (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)
    return tuple(layer(hidden).unflatten(-1, (attn.heads, -1)) for layer in layers)


def _joint(
    attn: Any, image: Projected, text: Projected | None, rotation: Tensor | None
) -> Projected:
    """Return queries, keys and values [B, X + L, H, E], the text first."""
    value = image[2] if text is None else torch.cat([text[2], image[2]], dim=1)
    if attn.norm_q is None:
        pairs = [image[:2]] if text is None else [text[:2], image[:2]]
        query, key = (torch.cat(parts, dim=1) for parts in zip(*pairs, strict=True))
        return query, key, value
    before = 0 if text is None else text[0].shape[1]
    image_tokens = Tokens(
        image[0],
        image[1],
        attn.norm_q.weight,
        attn.norm_k.weight,
        None if rotation is None else rotation[before:],
    )
    text_tokens = None
    if text is not None:
        text_tokens = Tokens(
            text[0],
            text[1],
            attn.norm_added_q.weight,
            attn.norm_added_k.weight,
            None if rotation is None else rotation[:before],
        )
    query, key = qk_norm_rope(image_tokens, text_tokens, eps=attn.norm_q.eps)
    return query, key, value


def _split(joint: Tensor, text: Projected) -> tuple[Tensor, Tensor]:
    # A linear layer of a view would be one product a sample.
    before = text[0].shape[1]
    return joint[:, :before].contiguous(), joint[:, before:].contiguous()
