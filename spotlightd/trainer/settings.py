"""What the daemon tells the trainer process at its start (no torch here: both sides import it)."""

from pathlib import Path

import msgspec

from spotlightd.config import Config
from spotlightd.errors import InputError


class TrainerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Written by the daemon to `<state_dir>/trainer.json`; holds no secret."""

    config: Config
    state_dir: str
    """Blobs, weights and checkpoints lie below it."""
    model_dir: str
    link_endpoint: str
    server_key: str
    """Z85 public CURVE key of the daemon."""
    key_file: str
    """The trainer's own key pair, readable by the daemon's user alone."""
    resume_version: int
    """Policy version to go on from; its checkpoint is in `checkpoints/<version>/`. -1: start."""


def write_settings(path: Path, settings: TrainerSettings) -> None:
    path.write_bytes(msgspec.json.encode(settings))


def read_settings(path: Path) -> TrainerSettings:
    """Raises InputError when the file is missing or not what the daemon writes."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=TrainerSettings)
    except OSError as error:
        raise InputError(f"cannot read the trainer's settings {path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise InputError(f"{path} is not what spotlightd writes for its trainer: {error}") from None
