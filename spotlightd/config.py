"""The daemon's configuration: TOML, with flag > `SPOTLIGHT_<SECTION>_<KEY>` > file > default.

The keys are in `sections.py`. `load` remembers where each value came from
(`spotlightd config --origin`); `compose` lays a run's configuration over the daemon's own.
"""

import difflib
import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from spotlightd.config_checks import check_planner, check_trainer, unused
from spotlightd.errors import ConfigError
from spotlightd.sections import Config

__all__ = ["Config", "Origins", "all_keys", "compose", "load", "read_tables", "value_of"]

Origins = dict[str, str]
"""Dotted key -> where its value came from."""
Tables = dict[str, dict[str, Any]]
"""Section -> key -> plain value, as TOML has them."""

COMMAND_LINE = "command line"
DEFAULT = "default"


def load(
    path: Path | None,
    flags: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[Config, Origins]:
    """Read the configuration.

    Args:
        path: TOML file; None for none.
        flags: dotted key -> text, from the command line.
        environ: defaults to the process environment.

    Raises:
        ConfigError: unreadable file, unknown key (the nearest valid one is named), or a value
            of the wrong type, out of bounds or at odds with another.
    """
    raw = {} if path is None else read_tables(path)
    file = _origins_of(raw, str(path))
    texts = _from_environment(os.environ if environ is None else environ)
    variables = {key: f"environment {_variable(key)}" for key in texts}
    _put(raw, texts, variables)
    given = dict.fromkeys(flags or {}, COMMAND_LINE)
    _put(raw, flags or {}, given)
    return _checked(raw, [file, variables, given])


def compose(
    own: Config, own_origins: Origins, file: str, tables: Tables, flags: Mapping[str, str]
) -> tuple[Config, Origins]:
    """Return the configuration of a run that is handed to a daemon with one of its own.

    Flags come before the run's tables, and those before what the daemon's own states.

    Args:
        file: where the tables were read, for errors and origins.
        flags: dotted key -> text.

    Raises ConfigError as `load`, and for a key that is the daemon's alone.
    """
    raw: Tables = {}
    stated: Origins = {}
    for key, origin in own_origins.items():
        value = msgspec.to_builtins(value_of(own, key))
        if origin != DEFAULT and value is not None:
            section, name = key.split(".")
            raw.setdefault(section, {})[name] = value
            stated[key] = origin
    for section, table in tables.items():
        raw.setdefault(section, {}).update(table)
    wanted, given = _origins_of(tables, file), dict.fromkeys(flags, COMMAND_LINE)
    _put(raw, flags, given)
    for key, origin in (wanted | given).items():
        if key.startswith(("link.", "control.")) or key == "store.state_dir":
            raise ConfigError(
                f"{origin}: '{key}' is the daemon's own, for all of its runs: leave it out, or "
                f"change it in the daemon's configuration and start it again"
            )
    return _checked(raw, [stated, wanted, given])


def _checked(raw: Tables, layers: Sequence[Origins]) -> tuple[Config, Origins]:
    """Return what the tables say, if that can be run; of layers the last is the strongest."""
    origins = {key: origin for layer in layers for key, origin in layer.items()}
    _refuse_unknown(raw, origins)
    config = _convert(raw, origins)
    _check_finite(config, origins)
    _check_together(config)
    check_planner(config)
    check_trainer(config)
    _refuse_unused(config, layers)
    return config, {key: origins.get(key, DEFAULT) for key in all_keys()}


def all_keys() -> list[str]:
    """Return every dotted key that a configuration may hold."""
    default = Config()
    return [
        f"{section}.{key}"
        for section in Config.__struct_fields__
        for key in getattr(default, section).__struct_fields__
    ]


def value_of(config: Config, key: str) -> Any:
    section, name = key.split(".")
    return getattr(getattr(config, section), name)


def read_tables(path: Path) -> Tables:
    """Return a TOML file's sections. Raises ConfigError where it is no such file."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    for section, table in raw.items():
        if not isinstance(table, dict):
            raise ConfigError(
                f"{path}: '{section}' stands outside a section; expected [section] headers such "
                f"as [run], then keys"
            )
    return raw


def _origins_of(tables: Tables, origin: str) -> Origins:
    return {f"{section}.{key}": origin for section, table in tables.items() for key in table}


def _variable(key: str) -> str:
    return "SPOTLIGHT_" + key.replace(".", "_").upper()


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    known = {_variable(key): key for key in all_keys()}
    found = {}
    for variable, text in environ.items():
        if variable in known:
            found[known[variable]] = text
        elif variable.startswith(
            tuple(f"SPOTLIGHT_{s.upper()}_" for s in Config.__struct_fields__)
        ):
            raise ConfigError(f"unknown environment variable {variable}{_nearest(variable, known)}")
    return found


def _put(raw: Tables, texts: Mapping[str, str], origins: Origins) -> None:
    for key, text in texts.items():
        if key.count(".") != 1:
            raise ConfigError(f"{origins[key]}: '{key}' is not of the form section.key=value")
        section, name = key.split(".")
        raw.setdefault(section, {})[name] = parse(text)


def parse(text: str) -> Any:
    """Read a value as TOML would, and as a plain string where it is no TOML value."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def _nearest(name: str, valid: Mapping[str, Any] | list[str]) -> str:
    close = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""


def _refuse_unknown(raw: Mapping[str, Mapping[str, Any]], origins: Origins) -> None:
    valid = all_keys()
    sections = list(Config.__struct_fields__)
    for section, table in raw.items():
        for key in [f"{section}.{name}" for name in table]:
            if key not in valid:
                where = origins.get(key, "configuration")
                raise ConfigError(f"{where}: unknown key '{key}'{_nearest(key, valid)}")
        if section not in sections:
            raise ConfigError(f"unknown section [{section}]{_nearest(section, sections)}")


def _convert(raw: Tables, origins: Origins) -> Config:
    try:
        return msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        message = str(error)
        path = message.rpartition("`$.")[2].rstrip("`") if "`$." in message else ""
        key = path.split("[")[0]
        what = message.split(" - at")[0]
        where = origins.get(key, "configuration")
        raise ConfigError(f"{where}: bad value for '{path or '?'}': {what}") from None


def _check_finite(config: Config, origins: Origins) -> None:
    # TOML has inf and nan, and bounds such as "at least 0" let infinity pass.
    for key in all_keys():
        value = value_of(config, key)
        if isinstance(value, float) and not math.isfinite(value):
            where = origins.get(key, "configuration")
            raise ConfigError(f"{where}: bad value for '{key}': {value} is not a finite number")


def _refuse_unused(config: Config, layers: Sequence[Origins]) -> None:
    """Refuse a stated key without effect, unless a stronger layer is what switched it off.

    A file may so describe an exploration that `--set planner.mode=off` leaves out for once.
    """
    strength = {key: rank for rank, layer in enumerate(layers) for key in layer}
    for found in unused(config):
        rank = strength.get(found.key)
        if rank is not None and rank >= strength.get(found.switch, -1):
            raise ConfigError(
                f"{layers[rank][found.key]}: '{found.key}' has no effect with {found.because}; "
                f"{found.cure}"
            )


def _check_together(config: Config) -> None:
    """Check what no single key can say. Messages name both keys and the cure."""
    sampler, trainer = config.sampler, config.trainer
    last = max(sampler.sde_window_starts, default=-1) + sampler.sde_window_size
    if not sampler.sde_window_starts or last > sampler.num_steps - 1:
        raise ConfigError(
            f"sampler.sde_window_starts {list(sampler.sde_window_starts)} with sde_window_size "
            f"{sampler.sde_window_size} must end before the last of {sampler.num_steps} steps, "
            f"which is never stochastic: choose a smaller start or size"
        )
    if trainer.clip_range is not None and trainer.clip_range_nats is not None:
        raise ConfigError(
            "trainer.clip_range and trainer.clip_range_nats say the same thing: give one"
        )
    if trainer.clip_range_nats is not None and sampler.sde_form == "flow_cps":
        raise ConfigError(
            "trainer.clip_range_nats needs a density, and with sampler.sde_form = 'flow_cps' the "
            "log-prob is none: give trainer.clip_range"
        )
    if not config.fleet.heartbeat_s < config.fleet.suspect_s < config.fleet.lost_s:
        raise ConfigError("fleet: heartbeat_s < suspect_s < lost_s must hold")
