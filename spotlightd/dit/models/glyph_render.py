"""Renders words as the embedded model's training images: one character per patch column."""

import random
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

CELL_WIDTH, HEIGHT, CELLS = 16, 32, 8
WIDTH = CELL_WIDTH * CELLS
MAX_GLYPH_WIDTH, MAX_GLYPH_HEIGHT = 15, 24


def load_fonts() -> list[ImageFont.FreeTypeFont]:
    """Return the packaged fonts at a size that fills a cell (extra `pretrain`)."""
    import font_roboto

    paths = [font_roboto.RobotoMedium, font_roboto.RobotoBold]
    fonts = [ImageFont.truetype(Path(path).as_posix(), 24) for path in paths]
    default = ImageFont.load_default(24)
    assert isinstance(default, ImageFont.FreeTypeFont)
    return [*fonts, default]


class GlyphSheet:
    """Renders words from cached characters: fast enough to make each training batch anew."""

    def __init__(self, fonts: list[ImageFont.FreeTypeFont], characters: str) -> None:
        self._tiles = [{c: _tile(font, c) for c in characters} for font in fonts]

    def render(self, word: str, rng: random.Random) -> np.ndarray:
        """Return float32 [32, 128] in [-1, 1], dark on light, in a random font and position."""
        tiles = rng.choice(self._tiles)
        ink = np.zeros((HEIGHT, WIDTH), dtype=np.float32)
        down, right = rng.randint(-1, 1), rng.randint(0, 1)
        for column, character in enumerate(word):
            tile = tiles[character]
            top = (HEIGHT - MAX_GLYPH_HEIGHT) // 2 + down
            left = column * CELL_WIDTH + right
            ink[top : top + tile.shape[0], left : left + tile.shape[1]] = tile
        paper, dark = rng.uniform(0.75, 0.95), rng.uniform(-0.95, -0.6)
        return paper + ink * (dark - paper)


def _tile(font: ImageFont.FreeTypeFont, character: str) -> np.ndarray:
    """Return ink in [0, 1], [24, 15], the character centred and shrunk to fit its width."""
    canvas = Image.new("L", (64, 64), 0)
    ImageDraw.Draw(canvas).text((16, 8), character, fill=255, font=font)
    ascent, _ = font.getmetrics()
    box = canvas.getbbox() or (16, 8, 17, 9)
    baseline = 8 + ascent
    top = baseline - 20
    glyph = canvas.crop((box[0], top, box[2], top + MAX_GLYPH_HEIGHT))
    if glyph.width > MAX_GLYPH_WIDTH:
        glyph = glyph.resize((MAX_GLYPH_WIDTH, MAX_GLYPH_HEIGHT), Image.Resampling.BILINEAR)
    tile = np.zeros((MAX_GLYPH_HEIGHT, MAX_GLYPH_WIDTH), dtype=np.float32)
    left = (MAX_GLYPH_WIDTH - glyph.width) // 2
    tile[:, left : left + glyph.width] = np.asarray(glyph, dtype=np.float32) / 255
    return tile
