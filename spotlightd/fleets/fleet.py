"""What is wanted of a fleet, as the command line says it."""

import re
from dataclasses import dataclass

from spotlightd.errors import UsageError

_GPU = re.compile(r"([A-Za-z][\w.-]*)(?::(\d+))?\Z")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}\Z")
TOKEN_VARIABLE = "SPOTLIGHT_TOKEN"


@dataclass(frozen=True)
class Fleet:
    name: str
    """Also the pool of its agents, and the start of its jobs' names."""
    gpu: str
    """As the provider calls it: H100, or a Kubernetes product label."""
    gpus: int
    """On each VM."""
    count: int
    """VMs."""
    max_price: float | None = None
    """Of one spot GPU-hour; None: whatever it costs."""
    package: str = "spotlight-rl"
    """What pip installs on a VM."""
    image: str = ""
    """Container image with the agent, for Kubernetes."""

    @property
    def jobs(self) -> list[str]:
        """Names of its VMs' jobs, which their agents have, too."""
        return [f"{self.name}-{index}" for index in range(self.count)]


def read_gpu(text: str) -> tuple[str, int]:
    """Read `H100:8` or `H100`. Raises UsageError."""
    match = _GPU.match(text)
    if match is None or match[2] == "0":
        raise UsageError(f"--gpu {text}: write a type and how many a VM has, such as H100:1")
    return match[1], int(match[2] or 1)


def check_name(name: str) -> str:
    """Return a name that every provider takes. Raises UsageError."""
    if _NAME.match(name) is None:
        raise UsageError(
            f"--name {name}: write a lower-case letter, then letters, digits and dashes, 31 at most"
        )
    return name
