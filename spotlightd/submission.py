"""A run's configuration on its way to a daemon that waits: read here, laid over the daemon's there.

    file, --set  --read_request-->  RunRequest  ==control socket==>  composed  -->  Config

Paths are made absolute where the file is read: the daemon has another folder to start from.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from spotlightd.config import Config, Origins, compose, parse, read_tables, value_of
from spotlightd.control.api import RunRequest
from spotlightd.errors import ConfigError
from spotlightd.models import EMBEDDED_MODEL
from spotlightd.prompts import EMBEDDED

PATHS: dict[str, tuple[str, ...]] = {
    "run.model": (EMBEDDED_MODEL,),
    "run.prompts": EMBEDDED,
    "run.held_out": EMBEDDED,
    "rewards.clip_score_model": ("",),
    "rewards.pickscore_model": ("",),
}
"""Keys whose values are paths -> the values that are none."""
FOLDER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


def read_request(file: Path, flags: Mapping[str, str], folder: Path) -> RunRequest:
    """Return a file and flags as they are sent, with absolute paths.

    Args:
        flags: dotted key -> text; relative paths in them start from `folder`, those in the file
            from the file's own.

    Raises ConfigError where it is no TOML file with sections.
    """
    file = Path(os.path.abspath(folder / file))
    tables = read_tables(file)
    for section, table in tables.items():
        for name, value in table.items():
            table[name] = _absolute(f"{section}.{name}", value, file.parent)
    sent = dict(flags)
    for key in PATHS.keys() & flags.keys():
        sent[key] = json.dumps(_absolute(key, parse(flags[key]), folder))
    return RunRequest(config=tables, set=sent, file=str(file))


def _absolute(key: str, value: object, folder: Path) -> object:
    if key not in PATHS or not isinstance(value, str) or value in PATHS[key]:
        return value
    return os.path.abspath(folder / os.path.expanduser(value))


def composed(
    own: Config, own_origins: Origins, wanted: RunRequest, folder: Path
) -> tuple[Config, Origins]:
    """Return the configuration of a run over the daemon's own, with a state directory of its own.

    Args:
        folder: below which the run's state directory is, by the run's name.

    Raises ConfigError as `config.compose`, for a relative path, and for a name that is no folder's.
    """
    config, origins = compose(own, own_origins, wanted.file, wanted.config, wanted.set)
    for key, names in PATHS.items():
        path = value_of(config, key)
        if origins[key] != own_origins[key] and path not in names and not os.path.isabs(path):
            raise ConfigError(
                f"{origins[key]}: '{key}' is the relative path {path!r}, and the daemon starts "
                f"from a folder of its own: give the whole path"
            )
    if not FOLDER_NAME.fullmatch(config.run.name):
        raise ConfigError(
            f"{origins['run.name']}: run.name {config.run.name!r} becomes a folder's name: use at "
            f"most 64 letters, digits, dots, dashes and underscores, and no dot or dash first"
        )
    store = msgspec.structs.replace(config.store, state_dir=str(folder / config.run.name))
    origins["store.state_dir"] = "the daemon, by run.name"
    return msgspec.structs.replace(config, store=store), origins


def states_a_run(origins: Origins) -> bool:
    """Whether a daemon's own configuration describes a run, which then begins by itself."""
    return any(key.startswith("run.") and origin != "default" for key, origin in origins.items())


DEFINING: Sequence[str] = (
    "run.model",
    "run.seed",
    "run.prompts",
    "run.held_out",
    "trainer.train",
    "trainer.lora_rank",
)
"""Keys that must stay for a run to go on: with others it is another run."""


def check_goes_on(
    config: Config, origins: Origins, before: Mapping[str, Mapping[str, object]]
) -> None:
    """Check that a configuration goes on with a run that began before under its name.

    Args:
        before: the configuration with which it last went on, as plain values.

    Raises ConfigError for another model, seed, prompts or kind of training.
    """
    for key in DEFINING:
        section, name = key.split(".")
        had, has = before.get(section, {}).get(name), value_of(config, key)
        if had != has:
            raise ConfigError(
                f"{origins[key]}: run '{config.run.name}' began with {key} = {had!r}, and this "
                f"says {has!r}: give another run a name of its own (--set run.name=NAME)"
            )
