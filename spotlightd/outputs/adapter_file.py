"""The adapter in the form that diffusers reads: `pytorch_lora_weights.safetensors`.

Only names and metadata differ from the file that the fleet samples with, so tensors are carried
over as bytes, whatever their dtype, and no tensor library is needed. The layout is safetensors'
own: eight bytes with the header's length, a JSON header, then the data.
"""

import json
from typing import Any

from spotlightd.errors import InputError

FILE_NAME = "pytorch_lora_weights.safetensors"
PREFIX = "transformer"
ENDS = (".lora_A.weight", ".lora_B.weight")


def to_diffusers(adapter: bytes, rank: int, alpha: float, source: str) -> bytes:
    """Return the file for `pipe.load_lora_weights`.

    Args:
        adapter: a version's `adapter.safetensors`.
        rank, alpha: of the run. Readers take alpha from the metadata; without it they would scale
            by 1 instead of alpha / rank.
        source: named in errors.

    Raises:
        InputError: damaged, not an adapter, or of another rank.
    """
    header, data = _split(adapter, source)
    header.pop("__metadata__", None)
    modules = set()
    for name, entry in header.items():
        end = next((end for end in ENDS if name.endswith(end)), None)
        if end is None:
            raise InputError(f"{source}: {name} is not part of a LoRA adapter")
        if entry["shape"][ENDS.index(end)] != rank:
            raise InputError(f"{source}: {name} is {entry['shape']}, the run's lora_rank is {rank}")
        modules.add(name.removesuffix(end))
    settings = {"r": rank, "lora_alpha": alpha, "target_modules": sorted(modules)}
    described = json.dumps({f"{PREFIX}.{key}": value for key, value in settings.items()})
    renamed = {f"{PREFIX}.{name}": entry for name, entry in header.items()}
    return _join(
        {"__metadata__": {"format": "pt", "lora_adapter_metadata": described}, **renamed}, data
    )


def _split(content: bytes, source: str) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8 : 8 + size])
        ends = [entry["data_offsets"][1] for k, entry in header.items() if k != "__metadata__"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{source} is not a safetensors file: {error!r}") from None
    data = content[8 + size :]
    if not ends or max(ends) != len(data):
        raise InputError(f"{source} is cut short or empty: restore it")
    return header, data


def _join(header: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data
