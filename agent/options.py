"""Options that `join` and `run` share: declared once, and spread into the signature of each."""

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from agent.enrol import default_name
from agent.settings import AgentSettings


@dataclass(frozen=True)
class WorkOptions:
    """What an agent is told of its work, with the help of each option."""

    state_dir: Annotated[
        Path | None, typer.Option(help="Keeps the key, the model and the adapters.")
    ] = None
    name: Annotated[str, typer.Option(help="Name shown to operators; default: the host's.")] = ""
    workers: Annotated[int, typer.Option(min=1, max=64, help="Worker processes, one per GPU.")] = 1
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of each worker.")] = 1
    max_batch: Annotated[
        int, typer.Option(min=1, max=1024, help="Trajectories per worker at once.")
    ] = 8
    preempt_file: Annotated[
        Path | None, typer.Option(help="When this file appears, the VM is about to be taken away.")
    ] = None
    preempt_provider: Annotated[
        str,
        typer.Option(help="Cloud that announces preemption: auto, none, aws, gcp, azure, alibaba."),
    ] = "auto"
    metadata_url: Annotated[
        str, typer.Option(help="Metadata service, if not the cloud's own address.")
    ] = ""
    notice_grace: Annotated[
        float, typer.Option(min=1, help="Seconds left at a notice that does not say.")
    ] = 30.0
    connect_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds to wait for the daemon.")
    ] = 20.0
    chunk_bind: Annotated[str, typer.Option(help="Local address on which weights are served.")] = (
        "0.0.0.0"
    )
    weights_dir: Annotated[
        Path | None,
        typer.Option(
            help="Keeps base models and adapters, such as /dev/shm; default: the state dir."
        ),
    ] = None
    weights_budget: Annotated[
        float | None,
        typer.Option(min=0.001, help="Gigabytes that these may take; default: all free."),
    ] = None
    zone: Annotated[
        str, typer.Option(help="Where the VM stands: peers of the same zone come first.")
    ] = ""
    max_sp_degree: Annotated[
        int, typer.Option(min=1, max=64, help="Workers that may share one image; 1: never.")
    ] = 1
    json_logs: Annotated[bool, typer.Option("--json-logs", help="Log JSON lines.")] = False

    def settings(self) -> AgentSettings:
        budget = self.weights_budget
        return AgentSettings(
            state_dir=self.state_dir or default_state_dir(),
            name=self.name or default_name(),
            workers=self.workers,
            threads=self.threads,
            max_batch=self.max_batch,
            preempt_file=self.preempt_file,
            preempt_provider=self.preempt_provider,
            metadata_url=self.metadata_url,
            notice_grace_s=self.notice_grace,
            connect_timeout_s=self.connect_timeout,
            chunk_bind=self.chunk_bind,
            weights_dir=self.weights_dir,
            weights_budget=None if budget is None else int(budget * 1e9),
            zone=self.zone,
            max_sp_degree=self.max_sp_degree,
        )


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of WorkOptions, in the place of its parameter `work`.

    Typer makes options of what a signature says, one parameter each.
    """
    kinds = get_type_hints(WorkOptions, include_extras=True)
    names = [field.name for field in fields(WorkOptions)]
    shown: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name != "work":
            shown.append(parameter)
            continue
        for field in fields(WorkOptions):
            shown.append(
                parameter.replace(
                    name=field.name, default=field.default, annotation=kinds[field.name]
                )
            )

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        command(work=WorkOptions(**{name: given.pop(name) for name in names}), **given)

    with_options.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    with_options.__annotations__ = {one.name: one.annotation for one in shown}
    return with_options


def default_state_dir() -> Path:
    """Root's agent is the system's; anybody else keeps its state at home."""
    if os.geteuid() == 0:
        return Path("/var/lib/spotlight-agent")
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(base) / "spotlight-agent"
