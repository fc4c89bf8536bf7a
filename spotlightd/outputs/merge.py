"""Merges an exported adapter into its base model: `python -m spotlightd.outputs.merge BASE OUT`.

A process of its own, because it needs torch. OUT holds the adapter file and gets the whole model,
as `save_pretrained` writes it.
"""

import sys
from pathlib import Path

from spotlightd.errors import ExitCode, InputError
from spotlightd.outputs.adapter_file import FILE_NAME


def merge(base: Path, out: Path) -> None:
    """Raises InputError where the base is no diffusers pipeline or the adapter does not fit it."""
    from diffusers import DiffusionPipeline
    from safetensors import SafetensorError

    try:
        pipe = DiffusionPipeline.from_pretrained(base, local_files_only=True, dtype="auto")
        pipe.load_lora_weights(out, weight_name=FILE_NAME)
    except (OSError, ValueError, TypeError, AttributeError, SafetensorError) as error:
        raise InputError(
            f"{base} is no diffusers pipeline that takes {FILE_NAME} ({error}); export the "
            f"adapter alone"
        ) from None
    pipe.fuse_lora(safe_fusing=True)
    pipe.unload_lora_weights()
    pipe.save_pretrained(out)


def main(argv: list[str]) -> int:
    try:
        merge(Path(argv[1]), Path(argv[2]))
    except InputError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return ExitCode.INPUT
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv))
