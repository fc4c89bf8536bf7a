"""The daemon's configuration: TOML, with flag > `SPOTLIGHT_<SECTION>_<KEY>` > file > default.

The keys are in `sections.py`. `load` remembers where each value came from
(`spotlightd config --origin`).
"""

import difflib
import math
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from spotlightd.config_checks import check_trainer, unused
from spotlightd.errors import ConfigError
from spotlightd.sections import Config

__all__ = ["Config", "Origins", "all_keys", "load", "value_of"]

Origins = dict[str, str]
"""Dotted key -> where its value came from: a file's path, or one of these."""
COMMAND_LINE = "command line"
ENVIRONMENT = "environment "
"""Before the variable's name."""


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
    raw, origins = _read_file(path)
    for key, text in _from_environment(os.environ if environ is None else environ).items():
        _put(raw, origins, key, text, f"{ENVIRONMENT}{_variable(key)}")
    for key, text in (flags or {}).items():
        _put(raw, origins, key, text, COMMAND_LINE)
    _refuse_unknown(raw, origins)
    config = _convert(raw, origins)
    _check_finite(config, origins)
    _check_together(config)
    check_trainer(config)
    _refuse_unused(config, origins)
    return config, {key: origins.get(key, "default") for key in all_keys()}


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


def _read_file(path: Path | None) -> tuple[dict[str, dict[str, Any]], Origins]:
    if path is None:
        return {}, {}
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
    return raw, {f"{section}.{key}": str(path) for section in raw for key in raw[section]}


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


def _put(raw: dict[str, Any], origins: Origins, key: str, text: str, origin: str) -> None:
    if key.count(".") != 1:
        raise ConfigError(f"{origin}: '{key}' is not of the form section.key=value")
    section, name = key.split(".")
    raw.setdefault(section, {})[name] = _parse(text)
    origins[key] = origin


def _parse(text: str) -> Any:
    """Read a value as TOML would, and as a plain string where it is no TOML value."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
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


def _convert(raw: dict[str, Any], origins: Origins) -> Config:
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


def _refuse_unused(config: Config, origins: Origins) -> None:
    """Refuse a stated key without effect, unless a stronger origin is what switched it off.

    A file may so describe an exploration that `--set planner.mode=off` leaves out for once.
    """
    for found in unused(config):
        stated = origins.get(found.key, "default")
        if stated != "default" and _rank(stated) >= _rank(origins.get(found.switch, "default")):
            raise ConfigError(
                f"{stated}: '{found.key}' has no effect with {found.because}; {found.cure}"
            )


def _rank(origin: str) -> int:
    """Return how strong an origin is: of two that state a key, the stronger one counts."""
    if origin == COMMAND_LINE:
        return 3
    if origin.startswith(ENVIRONMENT):
        return 2
    return 0 if origin == "default" else 1


def _check_together(config: Config) -> None:
    """Check what no single key can say. Messages name both keys and the cure."""
    sampler, planner, trainer = config.sampler, config.planner, config.trainer
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
    key = "max_candidates" if planner.mode == "bandit" else "candidates"
    if getattr(planner, key) < planner.group_size and planner.mode != "off":
        raise ConfigError(
            f"planner.{key} {getattr(planner, key)} is below planner.group_size "
            f"{planner.group_size}: raise it, or set planner.mode = 'off'"
        )
    if planner.rank_by not in config.rewards.names:
        raise ConfigError(
            f"planner.rank_by '{planner.rank_by}' is not scored: add it to rewards.report "
            f"{list(config.rewards.report)}"
        )
    if not config.fleet.heartbeat_s < config.fleet.suspect_s < config.fleet.lost_s:
        raise ConfigError("fleet: heartbeat_s < suspect_s < lost_s must hold")
