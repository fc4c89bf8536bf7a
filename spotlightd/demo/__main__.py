"""`python -m spotlightd.demo`: post-train the embedded model with a daemon and spot agents.

Starts the real commands on loopback, plays the story of story.py on them, and ends with a
summary (summary.json), a report (report.html) and a table.
"""

import json
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from spotlightd import config as configuration
from spotlightd.commands import run_app
from spotlightd.control.client import ControlClient
from spotlightd.demo.config import socket_path, write_config
from spotlightd.demo.processes import DemoProcess, Processes
from spotlightd.demo.progress import ProgressView
from spotlightd.demo.story import FIRST_AGENTS, Join, Kill, Preempt, Story
from spotlightd.demo.summary import summarise
from spotlightd.demo.table import print_table
from spotlightd.errors import InputError, SpotlightError, TryAgainError, UnreachableError
from spotlightd.store.store import Store
from spotlightd.web.collect import collect_report
from spotlightd.web.report import render_report

START_TIMEOUT_S = 60.0
POLL_S = 0.1
NOTICE_S = "20"
OURS = ".spotlight-demo"
"""Marks a folder that a demo made and the next one may replace."""

app = typer.Typer(
    help="Post-train a small text-to-image model with a daemon and spot agents, on this machine.",
    epilog="Example: python -m spotlightd.demo --seed 2 --out demo-out",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command(epilog="Example: python -m spotlightd.demo --seed 2 --out demo-out")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for state, logs, summary and report.")] = Path(
        "demo-out"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the run.")] = 1,
    iterations: Annotated[int, typer.Option(min=2, help="Training iterations.")] = 48,
    exploration: Annotated[
        bool, typer.Option("--exploration/--no-exploration", help="Explore seeds or not.")
    ] = True,
    calm: Annotated[bool, typer.Option("--calm", help="No VM is preempted or killed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Run the demo; exit code 0 when nothing was lost."""
    out = out.resolve()
    _prepare(out)
    console = Console(stderr=as_json)
    config_file = out / "spotlight.toml"
    write_config(config_file, out, seed, iterations, exploration)
    # A shell starts what it puts in the background with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    processes = Processes(out)
    began = time.monotonic()
    try:
        Run(out, processes, console, Story(0 if calm else iterations)).play(config_file)
    except KeyboardInterrupt:
        raise TryAgainError("interrupted: everything that was started has been stopped") from None
    finally:
        processes.stop_all()
    summary = write_results(out, config_file, processes, time.monotonic() - began)
    if as_json:
        print(json.dumps(summary))
    else:
        print_table(console, summary, out)
    if summary["trajectories"]["lost"]:
        raise SpotlightError(f"{summary['trajectories']['lost']} trajectories were lost")


def _prepare(out: Path) -> None:
    """Make an empty folder; only one that a demo made is emptied."""
    if out.exists() and any(out.iterdir()):
        if not (out / OURS).exists():
            raise InputError(f"{out} holds something else than a demo: choose another --out")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / OURS).touch()


class Run:
    """Plays the story on the processes while the run goes on."""

    def __init__(self, out: Path, processes: Processes, console: Console, story: Story) -> None:
        self._processes = processes
        self._console = console
        self._story = story
        self._agents: dict[str, DemoProcess] = {}
        self._client = ControlClient(socket_path(out))
        self._token = ""
        self._seen = 0

    def play(self, config_file: Path) -> None:
        """Returns when the daemon has ended by itself."""
        self._console.print(f"starting spotlightd and {len(FIRST_AGENTS)} spot agents")
        daemon = self._processes.daemon(config_file)
        self._wait_for_socket(daemon)
        self._token = self._client.create_token(ttl_s=3600, uses=10, pool="demo").token
        for name in FIRST_AGENTS:
            self._agents[name] = self._processes.agent(name, self._token)
        with ProgressView(self._console, self._client.status().iterations) as view:
            while daemon.running:
                self._turn(view)
                time.sleep(POLL_S)
        if daemon.process.returncode != 0:
            raise SpotlightError(
                f"spotlightd ended with exit code {daemon.process.returncode}; its log is "
                f"{daemon.log} and ends with: {_last_line(daemon.log)}"
            )
        for agent in self._agents.values():
            agent.process.wait(30)

    def _turn(self, view: ProgressView) -> None:
        try:
            status = self._client.status()
            rows = self._client.agents()
            events = self._client.events(after=self._seen)
        except UnreachableError:
            # The daemon ends when the run is finished.
            return
        self._seen = max((row.event_id for row in events), default=self._seen)
        view.events(events)
        view.show(status, rows)
        self._check_agents()
        if self._story.iterations:
            step = self._story.next_step(status, {row.name: row for row in rows})
            if step is not None:
                self._take(step, view)

    def _take(self, step: Preempt | Join | Kill, view: ProgressView) -> None:
        match step:
            case Preempt():
                view.say(f"{step.name}: preemption notice, {NOTICE_S} s left")
                self._processes.preempt_file(step.name).write_text(NOTICE_S)
            case Join():
                view.say(f"{step.name}: a fresh spot VM joins")
                self._agents[step.name] = self._processes.agent(step.name, self._token)
            case Kill():
                view.say(f"{step.name}: killed without warning")
                self._agents[step.name].process.kill()

    def _check_agents(self) -> None:
        for agent in self._agents.values():
            code = agent.process.poll()
            if code is not None and not agent.how_it_ended:
                agent.how_it_ended = _how_it_ended(code)
                if code not in (0, 3, -signal.SIGKILL):
                    raise SpotlightError(
                        f"{agent.name} ended with exit code {code}; its log is {agent.log} and "
                        f"ends with: {_last_line(agent.log)}"
                    )

    def _wait_for_socket(self, daemon: DemoProcess) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and daemon.running:
            try:
                self._client.status()
                return
            except UnreachableError:
                time.sleep(POLL_S)
        raise SpotlightError(
            f"spotlightd does not come up; its log is {daemon.log} and ends with: "
            f"{_last_line(daemon.log)}"
        )


def _how_it_ended(code: int) -> str:
    known = {0: "left with the run", 3: "drained by its notice", -signal.SIGKILL: "killed"}
    return known.get(code, f"exit code {code}")


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "(empty)"


def write_results(
    out: Path, config_file: Path, processes: Processes, seconds: float
) -> dict[str, Any]:
    """Write summary.json and report.html from the run's state; return the summary."""
    config, _ = configuration.load(config_file, environ={})
    ends = {
        p.name: p.how_it_ended or _how_it_ended(p.process.returncode) for p in processes.started[1:]
    }
    store = Store(out / "state")
    try:
        summary = summarise(store, config, ends, seconds)
        (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        report = render_report(collect_report(store, config, summary))
        (out / "report.html").write_text(report, encoding="utf-8")
    finally:
        store.close()
    return summary


if __name__ == "__main__":
    sys.exit(run_app(app, "spotlight-demo"))
