"""A fleet as a Kubernetes Job: a pod an agent, replaced when its node goes.

The Job's failure policy speaks the agent's exit codes: a drain, or a node that goes away, counts as
no failure and gets another pod; what cannot cure itself ends the Job. A finished run completes it.
"""

from typing import Any

from spotlightd.errors import ExitCode
from spotlightd.fleets.fleet import Fleet

HOPELESS = (ExitCode.USAGE, ExitCode.VERSION_SKEW, ExitCode.NOT_AUTHORISED, ExitCode.INPUT)
RETRIES = 1000
"""Of passing failures (69, 75), over the whole life of the Job."""
LABEL = "spotlight-fleet"


def manifest(fleet: Fleet, token: str) -> dict[str, Any]:
    """Return a List with the token's Secret and the Job."""
    labels = {LABEL: fleet.name}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{fleet.name}-token", "labels": labels},
        "type": "Opaque",
        "stringData": {"token": token},
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": fleet.name, "labels": labels},
        "spec": {
            "parallelism": fleet.count,
            "completions": fleet.count,
            "backoffLimit": RETRIES,
            "podReplacementPolicy": "TerminatingOrFailed",
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "Ignore",
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    },
                    _on_exit("Ignore", [ExitCode.DRAINED]),
                    _on_exit("FailJob", HOPELESS),
                ]
            },
            "template": {"metadata": {"labels": labels}, "spec": _pod(fleet)},
        },
    }
    return {"apiVersion": "v1", "kind": "List", "items": [secret, job]}


def _on_exit(action: str, codes: Any) -> dict[str, Any]:
    values = sorted(int(code) for code in codes)
    return {"action": action, "onExitCodes": {"operator": "In", "values": values}}


def _pod(fleet: Fleet) -> dict[str, Any]:
    command = ["spotlight-agent", "join", "--token-file", "/run/spotlight/token"]
    command += ["--workers", str(fleet.gpus), "--name", "$(POD_NAME)", "--zone", "$(NODE_NAME)"]
    command += ["--state-dir", "/var/lib/spotlight-agent"]
    container = {
        "name": "agent",
        "image": fleet.image,
        "command": command,
        "env": [
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
            for name, path in (("POD_NAME", "metadata.name"), ("NODE_NAME", "spec.nodeName"))
        ],
        "resources": {"limits": {"nvidia.com/gpu": fleet.gpus}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "token", "mountPath": "/run/spotlight", "readOnly": True},
            {"name": "state", "mountPath": "/var/lib/spotlight-agent"},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }
    return {
        "restartPolicy": "Never",
        # The agent commits what is in flight within the notice of the clouds.
        "terminationGracePeriodSeconds": 30,
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "fsGroup": 10001},
        "nodeSelector": {"nvidia.com/gpu.product": fleet.gpu},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [container],
        "volumes": [
            {"name": "token", "secret": {"secretName": f"{fleet.name}-token", "defaultMode": 288}},
            {"name": "state", "emptyDir": {}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        ],
    }


def apply_command() -> list[str]:
    """Return the command that takes the manifest on its standard input, secret and all."""
    return ["kubectl", "apply", "--filename", "-"]


def delete_command(name: str) -> list[str]:
    return ["kubectl", "delete", "job,secret", "--selector", f"{LABEL}={name}"]


def list_command(name: str) -> list[str]:
    return ["kubectl", "get", "pods", "--selector", f"{LABEL}={name}", "--output", "json"]
