"""Where a run's base model lies. No torch: the daemon serves the folder without loading it."""

import os
from pathlib import Path

from spotlightd.errors import InputError

EMBEDDED_MODEL = "glyph-ocr"
EMBEDDED_DIR = Path(__file__).parent / "dit/models/glyph_ocr_weights"


def resolve_model_dir(name: str) -> Path:
    """Return the folder of the embedded model's name or of a path.

    Raises InputError when there is no such folder.
    """
    path = EMBEDDED_DIR if name == EMBEDDED_MODEL else Path(name)
    # os.path: what can be no file's name, such as a very long one, is no file either.
    if not os.path.isfile(path / "model_index.json"):
        raise InputError(
            f"no model at '{name}': expected '{EMBEDDED_MODEL}' or a folder with a model_index.json"
        )
    return path
