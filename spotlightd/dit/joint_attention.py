"""Attention when the image tokens are spread over a group and every rank holds the text.

Each rank has queries, keys and values of its own image tokens, behind those of the whole text. Two
ways lead to the same result; both take uneven shards, empty ones too:

- `by_heads` (Ulysses, arXiv 2309.14509): two all-to-alls; each rank attends with all tokens and its
  share of the heads. Needs the degree to divide the heads.
- `by_keys`: one all-gather of keys and values; each rank attends with its own queries.

A rank sends 4 (S / P) C (P - 1) / P elements a layer the first way, 2 S C (P - 1) / P the second,
for S tokens of C channels on P ranks: as many at P = 2, and P / 2 times as many beyond.

Legend: B samples, L image tokens of this rank, T of all ranks, X text tokens, H heads, E channels
of a head, P ranks.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from triton_kernels.attention import attend
from triton_kernels.ulysses import pack_heads, pack_tokens, unpack_heads, unpack_tokens


class Group(Protocol):
    """The collectives that sharded attention needs; `spotlightd.dit.sp_group` has the real one."""

    @property
    def rank(self) -> int: ...

    @property
    def degree(self) -> int: ...

    def exchange(self, sent: Tensor, sent_sizes: list[int], sizes: list[int]) -> Tensor:
        """All-to-all: send consecutive elements of `sent` to each rank, return what came."""

    def gather(self, mine: Tensor) -> Tensor:
        """Return [P, *mine.shape]; all ranks give the same shape."""

    def settle(self) -> None:
        """Raise where a collective that was queued did not end well."""


def shard_counts(tokens: int, degree: int) -> tuple[int, ...]:
    """Return the tokens of each rank, contiguous in rank order; the first ranks take one more."""
    share, rest = divmod(tokens, degree)
    return tuple(share + (rank < rest) for rank in range(degree))


def gather_tokens(mine: Tensor, counts: Sequence[int], group: Group) -> Tensor:
    """Return [B, T, ...] from the [B, L, ...] of every rank.

    Shards are padded to the longest: gloo's all-gather takes equal shapes alone, and one token
    more is cheaper than a second collective for the sizes.
    """
    longest = max(counts)
    if mine.shape[1] < longest:
        missing = mine.new_zeros(mine.shape[0], longest - mine.shape[1], *mine.shape[2:])
        mine = torch.cat([mine, missing], dim=1)
    everyone = group.gather(mine.contiguous())
    return torch.cat([part[:, :count] for part, count in zip(everyone, counts, strict=True)], dim=1)


def attend_sharded(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    counts: Sequence[int],
    group: Group,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Return attention [B, X + L, H, E] over the text and all ranks' image tokens.

    Args:
        query, key, value: [B, X + L, H, E], text first; the text is the same on every rank.
        counts: image tokens of each rank.
        key_mask: bool [B, X + L], False for text that nobody attends to.
    """
    text = query.shape[1] - counts[group.rank]
    if key_mask is not None:
        image_mask = key_mask.new_ones(key_mask.shape[0], sum(counts))
        key_mask = torch.cat([key_mask[:, :text], image_mask], dim=1)
    way = by_heads if query.shape[2] % group.degree == 0 else by_keys
    return way(query, key, value, counts, group, key_mask)


def by_heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    counts: Sequence[int],
    group: Group,
    key_mask: Tensor | None,
) -> Tensor:
    """Arguments as in `attend_sharded`, with `key_mask` over the text and all image tokens."""
    batch, own, heads, size = query.shape
    rank, degree = group.rank, group.degree
    text, share = own - counts[rank], heads // degree
    joint = (query, key, value)
    sent = pack_heads([part[:, text:] for part in joint], degree)
    width = len(joint) * batch * share * size
    received = group.exchange(
        sent.flatten(), [counts[rank] * width] * degree, [count * width for count in counts]
    )
    image = unpack_tokens(received, counts, len(joint), batch, share, size)
    mine = slice(rank * share, (rank + 1) * share)
    full = [
        torch.cat([part[:, :text, mine], tokens], dim=1)
        for part, tokens in zip(joint, image, strict=True)
    ]
    out = attend(*full, key_mask=key_mask)
    # Every rank needs the text of all heads too: it travels with the image tokens.
    text_out, image_out = out[:, :text], out[:, text:]
    shards = [part for shard in image_out.split(list(counts), dim=1) for part in (text_out, shard)]
    sent = pack_tokens(torch.cat(shards, dim=1), [text + count for count in counts])
    width = batch * share * size
    received = group.exchange(
        sent, [(text + count) * width for count in counts], [own * width] * degree
    )
    return unpack_heads(received.view(degree, batch, own, share, size))


def by_keys(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    counts: Sequence[int],
    group: Group,
    key_mask: Tensor | None,
) -> Tensor:
    """Arguments as in `attend_sharded`, with `key_mask` over the text and all image tokens."""
    text = query.shape[1] - counts[group.rank]
    mine = torch.cat([key[:, text:], value[:, text:]])
    image_key, image_value = gather_tokens(mine, counts, group).chunk(2)
    return attend(
        query,
        torch.cat([key[:, :text], image_key], dim=1),
        torch.cat([value[:, :text], image_value], dim=1),
        key_mask=key_mask,
    )
