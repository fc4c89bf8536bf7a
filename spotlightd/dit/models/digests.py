"""SHA-256 of each file of a model folder, kept in its `model_index.json` under `sha256`.

safetensors notices a short or misshapen file, not a flipped bit inside a tensor.
"""

import hashlib
import json
from pathlib import Path

from spotlightd.errors import InputError

INDEX = "model_index.json"
UNCHECKED = (INDEX, "README.md")


def write_index(model_dir: Path, fields: dict[str, str]) -> None:
    """Write `model_index.json` with `fields` and the digests of the files that lie there now."""
    files = sorted(p for p in model_dir.rglob("*") if p.is_file() and p.name not in UNCHECKED)
    digests = {p.relative_to(model_dir).as_posix(): _sha256(p) for p in files}
    index = {**fields, "sha256": digests}
    (model_dir / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def check_digests(model_dir: Path) -> None:
    """Raise InputError naming the first file that is missing or is not what the index says."""
    try:
        digests = json.loads((model_dir / INDEX).read_text(encoding="utf-8"))["sha256"]
        pairs = [(str(name), str(digest)) for name, digest in digests.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{model_dir / INDEX} lists no digests under 'sha256' ({error!r}); take the folder "
            f"as `make pretrain` or the package wrote it"
        ) from None
    for name, expected in pairs:
        try:
            found = _sha256(model_dir / name)
        except OSError as error:
            raise InputError(f"{model_dir / name} cannot be read: {error}; restore it") from None
        if found != expected:
            raise InputError(
                f"{model_dir / name} is damaged: its SHA-256 is {found}, {INDEX} says {expected}; "
                f"restore it"
            )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
