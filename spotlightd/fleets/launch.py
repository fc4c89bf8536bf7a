"""Runs the providers' own commands. A token reaches them by environment or standard input alone."""

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spotlightd.errors import InputError, SpotlightError
from spotlightd.fleets import kubernetes, sky
from spotlightd.fleets.fleet import TOKEN_VARIABLE, Fleet
from spotlightd.fleets.offers import Offer

PATIENCE_S = 600.0
ADVICE = {
    "sky": "install SkyPilot (pip install skypilot) and set up a cloud (sky check)",
    "kubectl": "install it, and point it at the cluster",
}


def launch_sky(fleet: Fleet, offers: Sequence[Offer], token: str) -> None:
    """Launch a job a VM. Raises InputError without SkyPilot, SpotlightError where it refuses."""
    with tempfile.TemporaryDirectory(prefix="spotlight-fleet-") as folder:
        for name in fleet.jobs:
            path = Path(folder) / f"{name}.yaml"
            # JSON is YAML.
            path.write_text(json.dumps(sky.task(fleet, name, offers), indent=2))
            call(sky.launch_command(name, str(path)), environ={TOKEN_VARIABLE: token})


def launch_kubernetes(fleet: Fleet, token: str) -> None:
    """Apply the manifest. Raises InputError without kubectl, SpotlightError where it refuses."""
    call(kubernetes.apply_command(), text=json.dumps(kubernetes.manifest(fleet, token)))


def sky_states(names: Sequence[str]) -> dict[str, str]:
    """Return the state of each job by name; jobs that SkyPilot does not know are absent."""
    rows = _json(call(sky.QUEUE_COMMAND), "sky")
    rows = rows.get("jobs", []) if isinstance(rows, dict) else rows
    # Oldest first: of several jobs of one name the last one counts.
    known = {str(row.get("job_name")): str(row.get("status")) for row in reversed(rows)}
    return {name: known[name] for name in names if name in known}


def kubernetes_states(fleet_name: str) -> dict[str, str]:
    """Return the phase of each pod by name."""
    rows = _json(call(kubernetes.list_command(fleet_name)), "kubectl").get("items", [])
    return {row["metadata"]["name"]: row.get("status", {}).get("phase", "?") for row in rows}


def call(
    command: Sequence[str], text: str | None = None, environ: dict[str, str] | None = None
) -> str:
    """Run a provider's command and return what it printed."""
    program = command[0]
    try:
        done = subprocess.run(
            command,
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env={**os.environ, **(environ or {})},
        )
    except FileNotFoundError:
        raise InputError(f"there is no `{program}` here: {ADVICE[program]}") from None
    except subprocess.TimeoutExpired:
        shown = " ".join(command[:3])
        raise SpotlightError(f"`{shown}` did not end within {PATIENCE_S:.0f} s") from None
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())[-400:]
        raise SpotlightError(f"`{' '.join(command[:3])}` failed: {said or done.returncode}")
    return done.stdout


def _json(text: str, program: str) -> Any:
    start = min((i for i in (text.find("["), text.find("{")) if i >= 0), default=-1)
    try:
        return json.loads(text[start:]) if start >= 0 else []
    except json.JSONDecodeError:
        raise SpotlightError(
            f"`{program}` printed no JSON: is it as new as it should be?"
        ) from None
