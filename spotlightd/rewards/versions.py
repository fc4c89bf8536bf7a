"""Which scorer produced a score: one short word over everything that decides the numbers.

Two machines whose words differ do not score alike (another recogniser, another model folder), and
the daemon says so. A change of a reward's code raises its number here.
"""

import hashlib
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

import msgspec

from spotlightd.rewards import NEEDS
from spotlightd.wire.rewards import RewardOptions

CODE = {name: 1 for name in NEEDS} | {"ocr": 2, "ocr_ctc": 2, "ocr_substring": 2}
PROCESSOR_FILES = ("*.json", "*.safetensors")


def scorer_version(names: Sequence[str], options: RewardOptions) -> str:
    """Return 16 hex digits. Model folders count by their files' names and sizes."""
    parts: list[object] = [[(name, CODE[name]) for name in sorted(names)]]
    if any(NEEDS[name] == "text" for name in names):
        parts.append(["rapidocr", version("rapidocr"), version("onnxruntime")])
    for name, folder in (
        ("clip_score", options.clip_score_model),
        ("pickscore", options.pickscore_model),
    ):
        if name in names:
            parts.append([name, *_files(Path(folder))])
    if "http" in names:
        parts.append([options.http_url, options.http_format])
    if "mix" in names:
        parts.append(sorted(options.weights.items()))
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=8).hexdigest()


def _files(folder: Path) -> Iterable[tuple[str, int]]:
    found = [path for pattern in PROCESSOR_FILES for path in folder.glob(pattern)]
    return sorted((path.name, path.stat().st_size) for path in found)
