"""Which metadata service to ask, where, and how its answer reads."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from agent.metadata import parse
from spotlightd.errors import UsageError

DMI_FOLDER = Path("/sys/class/dmi/id")

Parse = Callable[[str, datetime, str], float | None]


@dataclass(frozen=True)
class Provider:
    """One cloud. Sources of the addresses: docs/operations.md."""

    name: str
    base_url: str
    path: str
    parse: Parse
    headers: dict[str, str]
    poll_s: float
    """Seconds between two questions."""
    wait_s: float = 0.0
    """The service holds the question open so long, and answers a change at once."""
    token_path: str = ""
    """Where a session token is fetched with PUT first (AWS IMDSv2)."""
    name_path: str = ""
    """Where this VM's name is asked first, because answers list several VMs (Azure)."""
    advice_path: str = ""
    """Where a risk is announced before, without a time (AWS); 404 until then."""
    is_advice: Callable[[str], bool] | None = None
    acknowledgement: Callable[[str, str], str | None] | None = None
    """From the answer and this VM's name: what to post to `path` when the VM may go (Azure)."""


PROVIDERS = {
    "aws": Provider(
        "aws",
        "http://169.254.169.254",
        "/latest/meta-data/spot/instance-action",
        parse.aws_instance_action,
        {},
        poll_s=2.0,
        token_path="/latest/api/token",
        advice_path="/latest/meta-data/events/recommendations/rebalance",
        is_advice=parse.aws_rebalance,
    ),
    "gcp": Provider(
        "gcp",
        "http://metadata.google.internal",
        "/computeMetadata/v1/instance/preempted?wait_for_change=true&timeout_sec=60",
        parse.gcp_preempted,
        {"Metadata-Flavor": "Google"},
        poll_s=1.0,
        wait_s=60.0,
    ),
    "azure": Provider(
        "azure",
        "http://169.254.169.254",
        "/metadata/scheduledevents?api-version=2020-07-01",
        parse.azure_scheduled_events,
        {"Metadata": "true"},
        poll_s=1.0,
        # The first question enables the service, and may take two minutes.
        wait_s=120.0,
        name_path="/metadata/instance/compute/name?api-version=2021-02-01&format=text",
        acknowledgement=parse.azure_acknowledgement,
    ),
    "alibaba": Provider(
        "alibaba",
        "http://100.100.100.200",
        "/latest/meta-data/instance/spot/termination-time",
        parse.alibaba_termination_time,
        {},
        poll_s=2.0,
    ),
}

_VENDORS = {
    "amazon": "aws",
    "google": "gcp",
    "microsoft corporation": "azure",
    "alibaba": "alibaba",
}


def choose_provider(name: str, dmi_folder: Path = DMI_FOLDER) -> Provider | None:
    """Return the provider by name, `auto` by the machine's DMI, None for `none` or a bare machine.

    Raises UsageError for an unknown name.
    """
    if name == "none":
        return None
    if name == "auto":
        return detect(dmi_folder)
    if name not in PROVIDERS:
        raise UsageError(
            f"unknown provider '{name}': expected auto, none or one of {', '.join(PROVIDERS)}"
        )
    return PROVIDERS[name]


def detect(dmi_folder: Path) -> Provider | None:
    """Recognise the cloud by what its firmware says of itself."""
    for file in ("sys_vendor", "product_name", "bios_vendor"):
        try:
            text = (dmi_folder / file).read_text(errors="replace").strip().lower()
        except OSError:
            continue
        for vendor, name in _VENDORS.items():
            if text.startswith(vendor):
                return PROVIDERS[name]
    return None
