"""Text encoder of the embedded model: one token per quoted byte, a few for the words around.

A quoted string has its own positions, so that "column j shows character j" is one fixed relative
offset for an attention head; encoders of large text-rendering models do the same for glyphs.
"""

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from spotlightd.errors import InputError

GLYPH_TOKENS = 8
CONTEXT_TOKENS = 4
CONTEXT_BUCKETS = 256
BLANK = 0
"""Byte of an unused glyph position."""


class GlyphTextEncoder(nn.Module):
    """Prompts to embeddings [B, 12, width]: 8 glyph tokens, then 4 context tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.glyphs = nn.Embedding(256, width)
        self.positions = nn.Embedding(GLYPH_TOKENS, width)
        self.context = nn.Embedding(CONTEXT_BUCKETS, width)

    def forward(self, glyphs_BG: Tensor, context_BC: Tensor) -> Tensor:
        glyphs = self.glyphs(glyphs_BG) + self.positions.weight
        return torch.cat([glyphs, self.context(context_BC)], dim=1)


def tokenize(prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return (glyph bytes [B, 8], context buckets [B, 4]), both int64.

    Raises InputError for a prompt without a quoted text of 1 to 8 printable ASCII characters.
    """
    rows = [_tokenize_one(prompt) for prompt in prompts]
    return torch.tensor([r[0] for r in rows]), torch.tensor([r[1] for r in rows])


def _tokenize_one(prompt: str) -> tuple[list[int], list[int]]:
    before, quote, rest = prompt.partition('"')
    quoted, closing, after = rest.partition('"')
    if not quote or not closing:
        raise InputError(f"the embedded model draws the text between double quotes: {prompt!r}")
    if not 1 <= len(quoted) <= GLYPH_TOKENS or not (quoted.isascii() and quoted.isprintable()):
        raise InputError(
            f"the embedded model draws 1 to {GLYPH_TOKENS} printable ASCII characters, "
            f"not {quoted!r}"
        )
    glyphs = list(quoted.encode()) + [BLANK] * (GLYPH_TOKENS - len(quoted))
    words = (before + " " + after).lower().split()
    buckets = [zlib.crc32(w.encode()) % (CONTEXT_BUCKETS - 1) + 1 for w in words[-CONTEXT_TOKENS:]]
    return glyphs, buckets + [0] * (CONTEXT_TOKENS - len(buckets))
