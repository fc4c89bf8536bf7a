"""Rows that a daemon tells whether a run goes on or it waits for one: runs, events, configuration.

HOME/runs/NAME is a run's state directory; HOME/runs/NAME/failure.txt says why it was given up.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from spotlightd.config import Config, Origins, value_of
from spotlightd.control import api, views
from spotlightd.errors import InputError
from spotlightd.logs import redact_values
from spotlightd.store.history import History

RUNS = "runs"
FAILURE = "failure.txt"


def run_row(history: History, state_dir: Path, state: str = "") -> api.RunRow | None:
    """Return what a state directory tells of its run; None where none has begun in it.

    Args:
        state: of a run that goes on; empty: nobody goes on with it, and its state is read.
    """
    rows = history.read(
        "SELECT name, config, cycle, policy_version, started_at, updated_at, state FROM run"
    )
    if not rows:
        return None
    name, config, cycle, version, started_at, updated_at, intent = rows[0]
    # Plain values: an ended run may be an older release's, with keys that this one does not know.
    plain: dict[str, Any] = json.loads(str(config))
    failure = _failure(state_dir)
    train = plain["rewards"]["train"]
    evaluated = [
        history.figures(version, "held_out.").get(train)
        for version in history.ends_of(f"held_out.{train}", 1)
    ]
    return api.RunRow(
        name=str(name),
        state=state or _ended(str(cycle), str(intent), failure),
        iteration=int(str(version)),
        iterations=plain["run"]["iterations"],
        policy_version=int(str(version)),
        started_at=float(str(started_at)),
        updated_at=float(str(updated_at)),
        reward_first=evaluated[0] if evaluated else None,
        reward_last=evaluated[-1] if evaluated else None,
        state_dir=str(state_dir),
        failure="" if state else failure,
    )


def ended_runs(home: Path) -> list[api.RunRow]:
    """Return the runs of a daemon's folder, the newest first; one that cannot be read says so."""
    found = []
    for path in (home / RUNS).glob("*/spotlight.db"):
        try:
            row = row_of(path.parent)
        except (InputError, ValueError, KeyError) as error:
            row = _unreadable(path.parent, str(error))
        if row is not None:
            found.append(row)
    return sorted(found, key=lambda row: -row.updated_at)


def row_of(state_dir: Path) -> api.RunRow | None:
    """Return the row of a run that nobody goes on with; None: none has begun there.

    Raises InputError where the state cannot be read.
    """
    if not (state_dir / "spotlight.db").exists():
        return None
    history = History(state_dir)
    try:
        return run_row(history, state_dir)
    finally:
        history.close()


def config_of(state_dir: Path) -> dict[str, dict[str, Any]]:
    """Return the configuration with which a run last went on, as plain values.

    Raises InputError where the state cannot be read.
    """
    history = History(state_dir)
    try:
        plain: dict[str, dict[str, Any]] = json.loads(
            str(history.read("SELECT config FROM run")[0][0])
        )
        return plain
    finally:
        history.close()


def event_rows(rows: Iterable[tuple[int, float, str, str, str]]) -> list[api.EventRow]:
    return [
        api.EventRow(event_id=i, time=at, level=level, component=component, text=text)  # type: ignore[arg-type]
        for i, at, level, component, text in rows
    ]


def config_rows(config: Config, origins: Origins) -> list[views.ConfigRow]:
    """Return every key with its value, secrets hidden, and its origin."""
    return [
        views.ConfigRow(
            key=key,
            value=redact_values(msgspec.to_builtins(value_of(config, key))),
            origin=origin,
        )
        for key, origin in origins.items()
    ]


def _ended(cycle: str, intent: str, failure: str) -> str:
    if failure:
        return "failed"
    if cycle and json.loads(cycle)["phase"] == "finished":
        return "done"
    return "stopped" if intent == "stopped" else "interrupted"


def _failure(state_dir: Path) -> str:
    try:
        return (state_dir / FAILURE).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def _unreadable(state_dir: Path, why: str) -> api.RunRow:
    return api.RunRow(
        name=state_dir.name,
        state="unreadable",
        iteration=0,
        iterations=0,
        policy_version=0,
        started_at=0.0,
        updated_at=0.0,
        state_dir=str(state_dir),
        failure=why,
    )
