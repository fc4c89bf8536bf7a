"""`spotlightctl fleet`: rent spot machines whose agents join by themselves, and give them back."""

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from spotlightd import __version__
from spotlightd.commands import seconds
from spotlightd.control.client import ControlClient
from spotlightd.control.command import Json, Socket
from spotlightd.control.places import find_socket, user_folder
from spotlightd.errors import InputError, UsageError
from spotlightd.fleets import kubernetes, launch, sky
from spotlightd.fleets.fleet import Fleet, check_name, read_gpu
from spotlightd.fleets.offers import Offer, affordable, read_catalogue

app = typer.Typer(
    help="Rent spot machines that join by themselves, look at them, give them back.",
    epilog="Example: spotlightctl fleet up --provider sky --gpu H100:1 --count 8 --max-price 2.5",
    rich_markup_mode=None,
)
USES_PER_VM = 100
"""A VM that is replaced joins anew, with the same token."""
HIDDEN = "[the token's value]"


class Provider(StrEnum):
    SKY = "sky"
    KUBERNETES = "kubernetes"


class Launched(msgspec.Struct, frozen=True):
    """What is kept of a fleet, on the operator's machine."""

    name: str
    provider: Provider
    jobs: tuple[str, ...]


Name = Annotated[str, typer.Option("--name", help="Of the fleet, which is its agents' pool.")]


@app.command("up", epilog="Example: spotlightctl fleet up --gpu H100:1 --count 8 --max-price 2.5")
def up(
    gpu: Annotated[str, typer.Option(help="Type, and how many a VM has: H100:1.")],
    count: Annotated[int, typer.Option(min=1, max=1000, help="Number of VMs.")],
    provider: Annotated[Provider, typer.Option(help="Who rents them.")] = Provider.SKY,
    max_price: Annotated[
        float | None, typer.Option(min=0.01, help="Of a spot GPU-hour (sky): only such zones.")
    ] = None,
    name: Name = "spot",
    ttl: Annotated[str, typer.Option(help="How long new VMs may join; 30d at most.")] = "7d",
    package: Annotated[
        str, typer.Option(help="What pip installs on each VM (sky).")
    ] = f"spotlight-rl=={__version__}",
    image: Annotated[str, typer.Option(help="Image with spotlight-agent (kubernetes).")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be launched.")
    ] = False,
    as_json: Json = False,
    socket: Socket = None,
) -> None:
    """Launch a fleet; its VMs install the agent, join, and are replaced when they vanish."""
    kind, gpus = read_gpu(gpu)
    fleet = Fleet(check_name(name), kind, gpus, count, max_price, package, image)
    if provider is Provider.KUBERNETES and not image:
        raise UsageError("--provider kubernetes needs --image, with spotlight-agent in it")
    if provider is Provider.KUBERNETES and max_price is not None:
        raise UsageError("--max-price is for sky: a cluster's nodes cost what they cost")
    offers = _offers(fleet) if provider is Provider.SKY else []
    if dry_run:
        for rendered in _render(fleet, provider, offers):
            print(json.dumps(rendered, indent=2))
        return
    path = _record(fleet.name)
    if path.exists():
        raise UsageError(f"there is a fleet '{name}': take it down first, or give --name another")
    client = ControlClient(find_socket(socket, os.environ))
    token = client.create_token(seconds(ttl), count * USES_PER_VM, fleet.name).token
    if offers:
        client.set_prices(fleet.name, {offer.place: offer.price for offer in offers})
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = Launched(fleet.name, provider, tuple(fleet.jobs))
    # Before the launch: what was launched by half can be taken down, too.
    path.write_bytes(msgspec.json.encode(kept))
    if provider is Provider.SKY:
        launch.launch_sky(fleet, offers, token)
    else:
        launch.launch_kubernetes(fleet, token)
    sentence = f"{count} x {gpu} launched as '{name}': spotlightctl fleet status --name {name}"
    _say(as_json, {"fleet": name, "jobs": list(fleet.jobs)}, sentence)


@app.command("status", epilog="Example: spotlightctl fleet status --name spot")
def status(
    name: Name = "spot",
    as_json: Json = False,
    socket: Socket = None,
) -> None:
    """Show each VM's job as its provider sees it, and its agents as the daemon does."""
    fleet = _launched(name)
    if fleet.provider is Provider.SKY:
        states = {job: "unknown" for job in fleet.jobs} | launch.sky_states(fleet.jobs)
    else:
        states = launch.kubernetes_states(fleet.name)
    agents: dict[str, list[str]] = {job: [] for job in states}
    for row in ControlClient(find_socket(socket, os.environ)).agents():
        if row.name in agents:
            agents[row.name].append(f"{row.agent_id} {row.state}")
    if as_json:
        rows = {job: {"job": states[job], "agents": agents[job]} for job in states}
        print(json.dumps(rows))
        return
    for job, state in states.items():
        print(f"{job:<24} {state:<14} {', '.join(agents[job]) or '-'}")


@app.command("down", epilog="Example: spotlightctl fleet down --name spot")
def down(name: Name = "spot", as_json: Json = False) -> None:
    """Give a fleet's machines back. Its agents hear of it as of any preemption."""
    fleet = _launched(name)
    if fleet.provider is Provider.SKY:
        for job in fleet.jobs:
            launch.call(sky.cancel_command(job))
    else:
        launch.call(kubernetes.delete_command(fleet.name))
    _record(name).unlink()
    _say(as_json, {"fleet": name, "given_back": list(fleet.jobs)}, f"'{name}' is being given back")


def _say(as_json: bool, answer: dict[str, Any], sentence: str) -> None:
    print(json.dumps(answer) if as_json else sentence)


def _offers(fleet: Fleet) -> list[Offer]:
    folder = Path.home() / ".sky/catalogs"
    try:
        offers = read_catalogue(folder, fleet.gpu, fleet.gpus)
    except InputError:
        if fleet.max_price is not None:
            raise
        # Any zone will do, and each costs the ledger's default.
        return []
    return affordable(offers, fleet.max_price, fleet.gpu)


def _render(fleet: Fleet, provider: Provider, offers: list[Offer]) -> list[dict[str, Any]]:
    if provider is Provider.SKY:
        return [sky.task(fleet, name, offers) for name in fleet.jobs[:1]]
    return [kubernetes.manifest(fleet, HIDDEN)]


def _record(name: str) -> Path:
    return user_folder(os.environ) / "fleets" / f"{check_name(name)}.json"


def _launched(name: str) -> Launched:
    path = _record(name)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Launched)
    except FileNotFoundError:
        known = ", ".join(sorted(found.stem for found in path.parent.glob("*.json"))) or "none"
        raise UsageError(f"no fleet '{name}' was launched from here; known: {known}") from None
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{path} is damaged ({error}): take the jobs down by hand") from None
