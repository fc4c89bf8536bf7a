"""Sample grids: a row a prompt, with its fixed seeds before training and after it."""

import io
from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

GAP = 4
CAPTION = 18
PAPER, INK = (255, 255, 255), (40, 40, 40)
MAX_SIDE = 256
"""Larger pictures are shrunk to this."""


class GridRow(NamedTuple):
    prompt: str
    before: Sequence[bytes]
    """PNG, one a seed."""
    after: Sequence[bytes]


def draw_grid(rows: Sequence[GridRow]) -> bytes:
    """Return a PNG: per row a caption, the pictures before, a wider gap, those after."""
    pictures = [[[_open(png) for png in part] for part in (row.before, row.after)] for row in rows]
    sizes = [picture.size for row in pictures for part in row for picture in part]
    if not sizes:
        raise ValueError("a grid needs at least one picture")
    cell_w, cell_h = max(w for w, _ in sizes), max(h for _, h in sizes)
    most = [max(len(row[side]) for row in pictures) for side in (0, 1)]
    starts = (GAP, 3 * GAP + most[0] * (cell_w + GAP))
    width = starts[1] + most[1] * (cell_w + GAP)
    step = CAPTION + cell_h + GAP
    canvas = Image.new("RGB", (width, GAP + len(rows) * step), PAPER)
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(12)
    for number, (row, parts) in enumerate(zip(rows, pictures, strict=True)):
        top = GAP + number * step
        draw.text((GAP, top), row.prompt, fill=INK, font=font)
        for left, part in zip(starts, parts, strict=True):
            for column, picture in enumerate(part):
                canvas.paste(picture, (left + column * (cell_w + GAP), top + CAPTION))
    out = io.BytesIO()
    canvas.save(out, "PNG")
    return out.getvalue()


def _open(png: bytes) -> Image.Image:
    with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
        picture = image.convert("RGB")
    picture.thumbnail((MAX_SIDE, MAX_SIDE))
    return picture
