"""A fleet as SkyPilot managed jobs: one job a VM, so that each VM is replaced by itself.

The agent's exit codes decide (docs/operations.md): 3 means that the VM is being taken away, and the
job is launched again elsewhere; 0 means that the run is finished, and the VM goes back.
"""

from collections.abc import Sequence
from typing import Any

from spotlightd.errors import ExitCode
from spotlightd.fleets.fleet import TOKEN_VARIABLE, Fleet
from spotlightd.fleets.offers import Offer

ENVIRONMENT = "$HOME/spotlight"
SETUP = """\
set -e
python3 -m venv {environment}
{environment}/bin/pip install --quiet '{package}'
"""
RUN = """\
zone=$(python3 -c 'import json, os
place = json.loads(os.environ.get("SKYPILOT_CLUSTER_INFO", "{{}}"))
print(place.get("zone") or place.get("region") or "")')
exec {environment}/bin/spotlight-agent join --name {name} --workers {workers} \\
    --zone "$zone" --state-dir "$HOME/spotlight-agent"
"""


def task(fleet: Fleet, name: str, offers: Sequence[Offer]) -> dict[str, Any]:
    """Return one VM's task as SkyPilot reads it. The token comes as a secret, by its name alone."""
    resources: dict[str, Any] = {
        "accelerators": f"{fleet.gpu}:{fleet.gpus}",
        "use_spot": True,
        "job_recovery": {
            "strategy": "EAGER_NEXT_REGION",
            # Only a notice: what cannot cure itself must not be bought again and again.
            "recover_on_exit_codes": [int(ExitCode.DRAINED)],
        },
    }
    if offers:
        resources["any_of"] = [{"infra": offer.infra} for offer in offers]
    return {
        "name": name,
        "resources": resources,
        "num_nodes": 1,
        "secrets": {TOKEN_VARIABLE: None},
        "setup": SETUP.format(environment=ENVIRONMENT, package=fleet.package),
        "run": RUN.format(environment=ENVIRONMENT, name=name, workers=fleet.gpus),
    }


def launch_command(name: str, path: str) -> list[str]:
    """Return the command that launches a job. The secret's value is read from the environment."""
    command = ["sky", "jobs", "launch", "--yes", "--detach-run", "--name", name]
    return [*command, "--secret", TOKEN_VARIABLE, path]


def cancel_command(name: str) -> list[str]:
    return ["sky", "jobs", "cancel", "--yes", "--name", name]


QUEUE_COMMAND = ["sky", "jobs", "queue", "--output", "json"]
