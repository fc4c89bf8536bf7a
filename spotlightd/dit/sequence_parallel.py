"""One forward of a diffusers transformer by the ranks of a group, each with some image tokens.

    latents [B, T, D] -> enter -> own tokens -> blocks, attention over all -> leave -> [B, T, D]

Text, weights and latents are whole on every rank, and so is the velocity that comes out: any rank
can go on alone, or in another group, from the boundary of a step. Blocks compute token by token;
only attention meets the other ranks (`joint_attention.py`). The model keeps its class, parameters
and names. Changing the group costs an assignment:

    parallel = SequenceParallel(model.transformer)
    parallel.group = group     # None: alone

Nothing here draws noise: it is keyed by element (`noise.py`), and is the same for any degree.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from spotlightd.dit.joint_attention import Group, attend_sharded, gather_tokens, shard_counts
from spotlightd.errors import InputError
from triton_kernels.attention import attend


class Seams(NamedTuple):
    """Modules of a transformer at which image tokens are spread and gathered."""

    enter: str
    """Its output [B, T, C] is cut into shards."""
    positions: str | None
    """Its output, rotations of all tokens, is cut likewise; None: positions enter with `enter`."""
    leave: str
    """Its output [B, L, C] is gathered."""


SEAMS = {
    "QwenImageTransformer2DModel": Seams("img_in", "pos_embed", "proj_out"),
    "FluxTransformer2DModel": Seams("x_embedder", "pos_embed", "proj_out"),
    "SD3Transformer2DModel": Seams("pos_embed", None, "proj_out"),
}


class SequenceParallel:
    """Lets `transformer` compute its forward with a group; alone while `group` is None.

    Every rank calls the forward with the same arguments and gets the same whole result. For
    sampling: the collectives have no gradient.

    Raises:
        InputError: no seams are known for this class of transformer, or an attention processor
            was installed that cannot be shared.
    """

    group: Group | None
    """May be changed between two forwards, never within one."""

    def __init__(self, transformer: Any) -> None:
        name = type(transformer).__name__
        if name not in SEAMS:
            known = ", ".join(sorted(SEAMS))
            raise InputError(f"{name} has no sequence parallelism; known: {known}")
        self.group = None
        self._counts: tuple[int, ...] = ()
        seams = SEAMS[name]
        self._share_attention(transformer)
        self._hooks = [
            getattr(transformer, seams.enter).register_forward_hook(self._enter),
            getattr(transformer, seams.leave).register_forward_hook(self._leave),
        ]
        if seams.positions is not None:
            module = getattr(transformer, seams.positions)
            self._hooks.append(module.register_forward_hook(self._positions))

    def remove(self) -> None:
        """Take the hooks out again; attention processors stay and compute alone."""
        self.group = None
        for hook in self._hooks:
            hook.remove()

    def _share_attention(self, transformer: Any) -> None:
        for module in transformer.modules():
            if hasattr(module, "set_processor") and hasattr(module, "processor"):
                if not hasattr(module.processor, "attend"):
                    module.set_processor(_shareable(module.processor))
                module.processor.attend = self.attend

    # --- within one forward -------------------------------------------------------------------

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, key_mask: Tensor | None = None
    ) -> Tensor:
        """Return attention [B, X + L, H, E] of X text tokens and this rank's L image tokens."""
        if self.group is None:
            return attend(query, key, value, key_mask=key_mask)
        return attend_sharded(query, key, value, self._counts, self.group, key_mask)

    @property
    def _own(self) -> slice:
        """This rank's tokens among all."""
        assert self.group is not None
        start = sum(self._counts[: self.group.rank])
        return slice(start, start + self._counts[self.group.rank])

    def _enter(self, module: Any, inputs: Any, hidden: Tensor) -> Tensor:
        if self.group is None:
            return hidden
        if torch.is_grad_enabled() and hidden.requires_grad:
            raise ValueError("sequence-parallel collectives have no gradient: use torch.no_grad()")
        self._counts = shard_counts(hidden.shape[1], self.group.degree)
        return hidden[:, self._own].contiguous()

    def _positions(
        self, module: Any, inputs: Any, rotations: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Cut Qwen's (image, text) rotations, or FLUX's (cosine, sine) of text before image."""
        if self.group is None:
            return rotations
        first, second = rotations
        if first.is_complex():
            return first[self._own], second
        text = first.shape[0] - sum(self._counts)
        kept = [torch.cat([part[:text], part[text:][self._own]]) for part in (first, second)]
        return kept[0], kept[1]

    def _leave(self, module: Any, inputs: Any, hidden: Tensor) -> Tensor:
        if self.group is None:
            return hidden
        whole = gather_tokens(hidden, self._counts, self.group)
        self.group.settle()
        return whole


def _shareable(processor: Any) -> Any:
    """Return our twin of one of diffusers' own processors."""
    from spotlightd.dit.joint_processors import FluxAttention, Sd3Attention
    from spotlightd.dit.models.qwen_ops import FusedAttention

    twins: dict[str, Any] = {
        "JointAttnProcessor2_0": Sd3Attention,
        "FluxAttnProcessor": FluxAttention,
        "QwenDoubleStreamAttnProcessor2_0": FusedAttention,
    }
    name = type(processor).__name__
    if name not in twins:
        raise InputError(
            f"attention processor {name} cannot be shared by a sequence-parallel group"
        )
    return twins[name]()
