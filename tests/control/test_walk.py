"""Every command of spotlightctl: its help, its own example, its JSON, and wrong usage of it."""

import contextlib
import io
import json
import re
import shlex
import signal
import subprocess

import pytest
import typer

from spotlightd.commands import run_app
from spotlightd.control import cli, cli_data
from spotlightd.store.history import History
from tests.control.runs import write_run
from tests.test_project import commands

LEAVES = {
    " ".join(words): command
    for words, command in commands(typer.main.get_command(cli.app), ["spotlightctl"])
    if not getattr(command, "commands", {}) or command.invoke_without_command
}
FLEETS = {f"spotlightctl fleet {verb}" for verb in ("up", "status", "down")}
"""They call a provider's own command: tests/fleets runs them."""
ELSEWHERE = {"spotlightctl replay"} | FLEETS
"""Replay samples with torch: tests/e2e/test_control.py runs it."""
NO_DAEMON = {"spotlightctl completion", "spotlightctl config check"} | ELSEWHERE


def run(words, *more):
    out, err = io.StringIO(), io.StringIO()
    out.buffer = io.BytesIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_app(cli.app, "spotlightctl", [*shlex.split(words)[1:], *more])
    return code, out.getvalue() + out.buffer.getvalue().decode(errors="replace"), err.getvalue()


def test_all_that_the_documents_promise_are_there():
    promised = """status top agents agents_list agents_drain agents_revoke agents_forget runs
        runs_list runs_submit runs_pause runs_resume runs_stop plan weights events ledger samples
        export replay timeline completion token_create config_check config_show stop"""
    assert {f"spotlightctl {name.replace('_', ' ')}" for name in promised.split()} <= set(LEAVES)


@pytest.mark.parametrize("name", sorted(LEAVES))
def test_help_has_an_example_and_json(name):
    code, out, _ = run(name, "--help")
    assert code == 0 and f"Example: {name}" in out and "--json" in out


def example_of(name, tmp_path):
    command = LEAVES[name]
    (example,) = re.findall(r"Example: (.*)", command.epilog)
    (tmp_path / "spotlight.toml").write_text("[run]\niterations = 3\n")
    for shown, real in (
        ("./my-adapter", str(tmp_path / "out")),
        ("spotlight.toml", str(tmp_path / "spotlight.toml")),
        ("run.json", str(tmp_path / "run.json")),
        ("a-3", "a-1"),
        (" --version 120", ""),
        (" --follow", ""),
    ):
        example = example.replace(shown, real)
    return example + (" --count 1" if name.split()[-1] == "top" else "")


@pytest.mark.parametrize("name", sorted(set(LEAVES) - ELSEWHERE))
def test_its_example_works_and_so_does_json(name, served, tmp_path, monkeypatch, exported):
    monkeypatch.setenv("SPOTLIGHT_CONTROL_SOCKET", str(served.path))
    example = example_of(name, tmp_path)
    code, out, err = run(example)
    assert (code, err) == (0, "") and out.strip()
    if name.endswith("timeline"):
        out = (tmp_path / "run.json").read_text()
        assert json.loads(out)["traceEvents"]
        return
    code, out, _ = run(example if "--json" in example else f"{example} --json")
    assert code == 0
    for line in out.strip().splitlines():
        json.loads(line)


@pytest.mark.parametrize("name", sorted(LEAVES))
def test_wrong_usage_is_one_line_and_64(name):
    for wrong in (["--no-such-option"], ["--socket"], ["too", "many", "words", "by", "far"]):
        code, out, err = run(name, *wrong)
        assert (code, out) == (64, ""), (wrong, err)
        assert err.startswith("spotlightctl: ") and err.count("\n") == 1


@pytest.mark.parametrize("name", sorted(set(LEAVES) - NO_DAEMON))
def test_without_a_daemon_it_is_69(name, tmp_path, monkeypatch):
    monkeypatch.setenv("SPOTLIGHT_CONTROL_SOCKET", str(tmp_path / "none.sock"))
    code, out, err = run(example_of(name, tmp_path))
    assert (code, out) == (69, "") and "none.sock" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("spotlightctl completion tcsh", 64, "bash, zsh, fish"),
        ("spotlightctl config check /nowhere.toml", 78, "/nowhere.toml"),
        ("spotlightctl replay x --state-dir /nowhere", 78, "no run can be read in /nowhere"),
        ("spotlightctl export o --state-dir /nowhere", 78, "/nowhere"),
        ("spotlightctl top --interval soon", 64, "not a duration"),
    ],
)
def test_other_failures(words, code, says):
    got, out, err = run(words)
    assert (got, out) == (code, "") and says in err and err.count("\n") == 1


@pytest.fixture
def exported(monkeypatch):
    """The adapter of these runs is no adapter: tests/outputs exports a real one."""
    from spotlightd.control import handlers
    from tests.control.test_api import archive

    monkeypatch.setattr(handlers, "_packed", lambda state_dir, version: archive("README.md"))


def test_a_replay_that_is_killed_is_one_line_and_no_trace(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "state", iterations=1)
    killed = subprocess.CompletedProcess([], -signal.SIGKILL, stdout="", stderr="")
    monkeypatch.setattr(cli_data.subprocess, "run", lambda *_, **__: killed)
    history = History(folder)
    ((name,),) = history.read("SELECT request_id FROM result LIMIT 1")
    history.close()
    code, out, err = run(f"spotlightctl replay {name} --state-dir {folder}")
    assert (code, out, err) == (1, "", "spotlightctl: it gave no reason\n")
