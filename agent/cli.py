"""`spotlight-agent`: join a daemon from a spot VM, and work."""

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from agent.enrol import default_name
from agent.settings import AgentSettings
from spotlightd import logs
from spotlightd.commands import add_version, run_app
from spotlightd.errors import InputError, UsageError
from spotlightd.install import command as installing
from spotlightd.wire.token import Token, parse_token

app = typer.Typer(
    help="The agent on a spot VM: pulls work and weights from a spotlightd, and samples.",
    epilog="Example: spotlight-agent join --token-file token.txt",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

StateDir = Annotated[Path | None, typer.Option(help="Keeps the key, the model and the adapters.")]
Name = Annotated[str, typer.Option(help="Name shown to operators; default: the host's.")]
WorkerCount = Annotated[int, typer.Option(min=1, max=64, help="Worker processes, one per GPU.")]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads of each worker.")]
MaxBatch = Annotated[int, typer.Option(min=1, max=1024, help="Trajectories per worker at once.")]
PreemptFile = Annotated[
    Path | None, typer.Option(help="When this file appears, the VM is about to be taken away.")
]
Provider = Annotated[
    str, typer.Option(help="Cloud that announces preemption: auto, none, aws, gcp, azure, alibaba.")
]
MetadataUrl = Annotated[str, typer.Option(help="Metadata service, if not the cloud's own address.")]
Grace = Annotated[float, typer.Option(min=1, help="Seconds left at a notice that does not say.")]
Timeout = Annotated[float, typer.Option(min=1, help="Seconds to wait for the daemon.")]
ChunkBind = Annotated[str, typer.Option(help="Local address on which weights are served.")]
WeightsDir = Annotated[
    Path | None,
    typer.Option(help="Keeps base models and adapters, such as /dev/shm; default: the state dir."),
]
WeightsBudget = Annotated[
    float | None, typer.Option(min=0.001, help="Gigabytes that these may take; default: all free.")
]
Zone = Annotated[str, typer.Option(help="Where the VM stands: peers of the same zone come first.")]
SpDegree = Annotated[
    int, typer.Option(min=1, max=64, help="Workers that may share one image; 1: never.")
]
JsonLogs = Annotated[bool, typer.Option("--json-logs", help="Log JSON lines.")]
Install = Annotated[
    bool,
    typer.Option("--install", help="Enrol, then write and start a systemd unit that works."),
]
Options = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- [OPTIONS OF JOIN]", help="What the unit passes to join."),
]


add_version(app, "spotlight-agent")


@app.command(epilog="Example: spotlight-agent join --token-file token.txt --name vm-1")
def join(
    context: typer.Context,
    token: Annotated[
        str | None,
        typer.Argument(help="Join token; better in a file or in SPOTLIGHT_TOKEN than here."),
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with the token.")] = None,
    state_dir: StateDir = None,
    name: Name = "",
    workers: WorkerCount = 1,
    threads: Threads = 1,
    max_batch: MaxBatch = 8,
    preempt_file: PreemptFile = None,
    preempt_provider: Provider = "auto",
    metadata_url: MetadataUrl = "",
    notice_grace: Grace = 30.0,
    connect_timeout: Timeout = 20.0,
    chunk_bind: ChunkBind = "0.0.0.0",
    weights_dir: WeightsDir = None,
    weights_budget: WeightsBudget = None,
    zone: Zone = "",
    max_sp_degree: SpDegree = 1,
    json_logs: JsonLogs = False,
    install_: Install = False,
) -> None:
    """Enrol with a token made by `spotlightctl token create`, then work until told to leave."""
    settings = AgentSettings(
        state_dir=state_dir or default_state_dir(),
        name=name or default_name(),
        workers=workers,
        threads=threads,
        max_batch=max_batch,
        preempt_file=preempt_file,
        preempt_provider=preempt_provider,
        metadata_url=metadata_url,
        notice_grace_s=notice_grace,
        connect_timeout_s=connect_timeout,
        chunk_bind=chunk_bind,
        weights_dir=weights_dir,
        weights_budget=_bytes(weights_budget),
        zone=zone,
        max_sp_degree=max_sp_degree,
    )
    found = _find_token(token, token_file, settings.state_dir)
    if not install_:
        _start(settings, found, json_logs)
    from agent.install import join_and_install, options_given

    if found is None:
        raise UsageError("join --install needs a token: --token-file FILE, or SPOTLIGHT_TOKEN")
    join_and_install(settings, found, options_given(context))


@app.command(epilog="Example: spotlight-agent install -- --workers 8 --zone us-east-1a")
def install(
    options: Options = None,
    root: installing.Root = None,
    dry_run: installing.DryRun = False,
    start: installing.Start = False,
    uninstall: installing.Uninstall = False,
    purge: installing.Purge = False,
) -> None:
    """Put the agent under systemd; it joins with the token in /etc/spotlight/token."""
    from agent.install import check_options
    from agent.install import install as do

    check_options(options or [], typer.main.get_command(app))
    do(installing.Wanted(root, dry_run, start, uninstall, purge), options or [])


@app.command(epilog="Example: spotlight-agent run --state-dir /var/lib/spotlight-agent")
def run(
    state_dir: StateDir = None,
    name: Name = "",
    workers: WorkerCount = 1,
    threads: Threads = 1,
    max_batch: MaxBatch = 8,
    preempt_file: PreemptFile = None,
    preempt_provider: Provider = "auto",
    metadata_url: MetadataUrl = "",
    notice_grace: Grace = 30.0,
    connect_timeout: Timeout = 20.0,
    chunk_bind: ChunkBind = "0.0.0.0",
    weights_dir: WeightsDir = None,
    weights_budget: WeightsBudget = None,
    zone: Zone = "",
    max_sp_degree: SpDegree = 1,
    json_logs: JsonLogs = False,
) -> None:
    """Work again with the key of an earlier join; needs no token."""
    settings = AgentSettings(
        state_dir=state_dir or default_state_dir(),
        name=name or default_name(),
        workers=workers,
        threads=threads,
        max_batch=max_batch,
        preempt_file=preempt_file,
        preempt_provider=preempt_provider,
        metadata_url=metadata_url,
        notice_grace_s=notice_grace,
        connect_timeout_s=connect_timeout,
        chunk_bind=chunk_bind,
        weights_dir=weights_dir,
        weights_budget=_bytes(weights_budget),
        zone=zone,
        max_sp_degree=max_sp_degree,
    )
    _start(settings, None, json_logs)


def _bytes(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else int(gigabytes * 1e9)


def _start(settings: AgentSettings, token: Token | None, json_logs: bool) -> None:
    logs.configure(logging.INFO, as_json=json_logs)
    # Help and errors of usage need none of it.
    from agent import main as agent

    raise typer.Exit(agent.run(settings, token))


def default_state_dir() -> Path:
    """Root's agent is the system's; anybody else keeps its state at home."""
    if os.geteuid() == 0:
        return Path("/var/lib/spotlight-agent")
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(base) / "spotlight-agent"


def _find_token(text: str | None, file: Path | None, state_dir: Path) -> Token | None:
    """Return the token; None where there is none, and none is needed: it has joined before."""
    # Children need not inherit it.
    given = os.environ.pop("SPOTLIGHT_TOKEN", "")
    if text is not None and file is not None:
        raise UsageError("give the token once: as an argument, by --token-file or SPOTLIGHT_TOKEN")
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read the token file {file}: {error}") from None
    text = text or given or _credential()
    if not text and (state_dir / "agent.json").exists():
        return None
    if not text:
        raise UsageError(
            "a join token is needed: spotlight-agent join --token-file FILE, or SPOTLIGHT_TOKEN "
            "(make one with spotlightctl token create)"
        )
    return parse_token(text)


def _credential() -> str:
    """Return the token that systemd hands to the unit; empty where there is none."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY", "")
    path = Path(folder) / "token"
    return path.read_text(encoding="utf-8").strip() if folder and path.exists() else ""


def main() -> None:
    sys.exit(run_app(app, "spotlight-agent"))
