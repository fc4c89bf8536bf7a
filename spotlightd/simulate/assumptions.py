"""What the simulator takes from elsewhere, in typed records: `assumptions.toml`, with changes."""

import difflib
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from spotlightd.errors import InputError

DEFAULTS = Path(__file__).with_name("assumptions.toml")

Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=1)]


class Sourced(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A group of assumptions, and where they are from."""

    kind: Literal["public", "measured", "assumed"]
    source: str


class Denoise(Sourced, frozen=True):
    timings: Annotated[tuple[tuple[Count, Count, Positive], ...], Meta(min_length=2, max_length=2)]
    """(pixels of a side, denoising steps, seconds)."""


class SequenceParallel(Sourced, frozen=True):
    side: Count
    steps: Count
    timings: Annotated[tuple[tuple[Count, Positive], ...], Meta(min_length=1)]
    """(degree, seconds), from degree 1."""


class Regroup(Sourced, frozen=True):
    elastic_s: NonNegative
    rebuilt_s: NonNegative


class Decode(Sourced, frozen=True):
    seconds_at_1024: NonNegative


class Reward(Sourced, frozen=True):
    seconds: NonNegative


class Train(Sourced, frozen=True):
    step_s: Positive
    gpus: Count
    images: Count
    side: Count
    denoise_steps: Count
    trained_steps: Count
    spread: Share


class Transfer(Sourced, frozen=True):
    gbit_s: Positive
    adapter_gb: Positive
    base_gb: Positive


class Boot(Sourced, frozen=True):
    boot_s: NonNegative
    load_s: NonNegative


class Preemption(Sourced, frozen=True):
    notice_s: NonNegative
    silent_share: Share


class Fleet(Sourced, frozen=True):
    reserved_gpus: Count
    spot_vms: Count
    gpus_per_vm: Count
    speed_spread: Share
    slots_per_gpu: Count


class Prices(Sourced, frozen=True):
    reserved: NonNegative
    spot: Annotated[dict[str, NonNegative], Meta(min_length=1)]
    """By zone."""


class FidelityTable(Sourced, frozen=True):
    by_lag: Annotated[tuple[Share, ...], Meta(min_length=1)]
    by_tail: Annotated[tuple[tuple[Share, Share], ...], Meta(min_length=1)]


class Learning(Sourced, frozen=True):
    group_size: Count
    """Rollouts of a group that trains whole and random: a progress of 1."""
    variance_exponent: float
    share_exponent: float


class Task(Sourced, frozen=True):
    reward: Literal["graded", "pass"]
    """`graded`: between 0 and 1; `pass`: 0 or 1, ranked by a graded score."""
    start: Share
    target: Share
    ceiling: Share
    iterations: Count
    spread: Positive
    prompt_spread: NonNegative


class Assumptions(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    denoise: Denoise
    sequence_parallel: SequenceParallel
    regroup: Regroup
    decode: Decode
    reward: Reward
    train: Train
    transfer: Transfer
    boot: Boot
    preemption: Preemption
    fleet: Fleet
    prices: Prices
    fidelity: FidelityTable
    learning: Learning
    tasks: dict[str, Task]
    """By the reward that trains."""


def load_assumptions(path: Path | None = None, **changes: dict[str, Any]) -> Assumptions:
    """Read the shipped assumptions with the changes of a file, then those given as sections.

    Raises:
        InputError: an unreadable file, an unknown key (the nearest valid one is named), a value of
            the wrong type or out of bounds.
    """
    raw = _read(DEFAULTS)
    where = str(DEFAULTS if path is None else path)
    for change in ([] if path is None else [_read(path)]) + [changes]:
        _merge(raw, change, where, "")
    try:
        found = msgspec.convert(raw, Assumptions)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {error}") from None
    for name, task in found.tasks.items():
        if not task.start < task.target < task.ceiling:
            raise InputError(f"{where}: tasks.{name}: start < target < ceiling must hold")
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"cannot read the assumptions in {path}: {error}") from None


def _merge(raw: dict[str, Any], change: dict[str, Any], where: str, path: str) -> None:
    """Put a file's keys over the shipped ones; zones replace the shipped zones as a whole."""
    for key, value in change.items():
        name = f"{path}{key}"
        if key not in raw:
            close = difflib.get_close_matches(key, list(raw), n=1, cutoff=0.5)
            hint = f"; did you mean '{path}{close[0]}'?" if close else ""
            raise InputError(f"{where}: unknown key '{name}'{hint}")
        if isinstance(value, dict) and isinstance(raw[key], dict) and name != "prices.spot":
            _merge(raw[key], value, where, f"{name}.")
        else:
            raw[key] = value
