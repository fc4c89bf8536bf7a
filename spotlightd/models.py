"""Where a run's base model lies. No torch: the daemon serves the folder without loading it."""

from pathlib import Path

from spotlightd.errors import InputError

EMBEDDED_MODEL = "glyph-ocr"
EMBEDDED_DIR = Path(__file__).parent / "dit/models/glyph_ocr_weights"


def resolve_model_dir(name: str) -> Path:
    """Return the folder of the embedded model's name or of a path.

    Raises InputError when there is no such folder.
    """
    path = EMBEDDED_DIR if name == EMBEDDED_MODEL else Path(name)
    if not (path / "model_index.json").is_file():
        raise InputError(
            f"no model at '{name}': expected '{EMBEDDED_MODEL}' or a folder with a model_index.json"
        )
    return path
