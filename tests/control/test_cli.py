import json
import threading

import pytest

from spotlightd.commands import run_app, seconds
from spotlightd.control import cli, render
from spotlightd.errors import TryAgainError, UsageError


@pytest.fixture
def ctl(served, capsys):
    """Run spotlightctl against the served daemon: (exit code, stdout, stderr)."""

    def run(*arguments):
        code = run_app(cli.app, "spotlightctl", [*arguments, "--socket", str(served.path)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_status_tells_how_the_run_is_doing(ctl):
    code, out, _ = ctl("status")
    assert code == 0
    for part in ("words: train, iteration 4/30", "2 live, 1 draining", "control 0.512", "1h02m"):
        assert part in out
    assert "lost         0" in out and "1.75 USD" in out
    assert json.loads(ctl("status", "--json")[1])["epoch"] == 3


def test_agents_with_and_without_a_subcommand(ctl):
    code, out, _ = ctl("agents")
    assert code == 0 and ctl("agents", "list") == (0, out, "")
    heading, first, second = out.splitlines()
    assert heading.split() == list(render.AGENT_COLUMNS)
    assert first.split()[:6] == ["a-1", "spot-one", "live", "1", "8", "3"] and "75%" in first
    assert "draining, notice 1m50s" in second
    assert [row["leases"] for row in json.loads(ctl("agents", "--json")[1])] == [8, 0]


def test_drain(ctl, served):
    assert ctl("agents", "drain", "a-1", "--deadline", "2m")[:2] == (0, "draining a-1\n")
    assert served.daemon.calls == [("drain", "a-1", 120.0)]
    code, _, err = ctl("agents", "drain", "a-7")
    assert code == 64 and "no agent 'a-7'" in err


def test_runs(ctl):
    assert "0.510" in ctl("runs")[1] and "4/30" in ctl("runs")[1]
    assert json.loads(ctl("runs", "--json")[1])[0]["state"] == "running"


def test_plan_says_why_and_what_came_of_it(ctl):
    code, out, _ = ctl("plan")
    lines = out.splitlines()
    assert code == 0 and lines[1].split(maxsplit=1) == [
        "plan",
        "iteration 5: 46 seeds for each of 4 prompts at 8 steps",
    ]
    assert "40 kept, 1 overrun" in out and "fidelity 0.91 ± 0.03 at staleness 1" in out
    assert lines[-1].split()[:4] == ["4", "46", "-", "0.912"]
    assert ctl("plan", "--last", "1")[1].count("\n") == len(lines) - 1
    assert json.loads(ctl("plan", "--json")[1])["arms"][0]["tail_steps"] == 2


def test_token_alone_on_stdout(ctl, served):
    code, out, _ = ctl("token", "create", "--ttl", "15m", "--uses", "32")
    assert (code, out) == (0, "spl1.127.0.0.1:9.key.id.secret\n")
    assert served.daemon.calls == [("token", 900.0, 32, "default")]
    assert json.loads(ctl("token", "create", "--json")[1])["token_id"] == "id"


def test_token_out_of_bounds(ctl, served):
    code, _, err = ctl("token", "create", "--uses", "0")
    assert code == 64 and "uses" in err and err.count("\n") == 1
    assert served.daemon.calls == []


def test_events_are_paged_and_followed(ctl, served):
    assert [line.split()[-1] for line in ctl("events")[1].splitlines()] == ["1", "2"]
    assert ctl("events", "--after", "1", "--json")[1].count("\n") == 1
    served.daemon.rows = [*served.daemon.rows, render.api.EventRow(
        event_id=9, time=0, level="error", component="store", text="disk full")]  # fmt: skip
    seen = []

    def follow():
        for row in cli._all_events(served.client, 2, follow=True):
            seen.append(row.event_id)
            if row.event_id == 10:
                return

    follower = threading.Thread(target=follow)
    follower.start()
    assert served.daemon.waiting.wait(10)
    served.add_event(render.api.EventRow(
        event_id=10, time=0, level="info", component="x", text="y"))  # fmt: skip
    follower.join(10)
    assert seen == [9, 10]


def test_stop(ctl, served):
    assert ctl("stop")[:2] == (0, "stopping\n")
    assert served.daemon.calls == [("stop",)]


def test_failures_are_one_line_with_their_exit_code(ctl, failing, tmp_path, capsys):
    failing(TryAgainError("the store is\nbusy"))
    assert ctl("status") == (75, "", "spotlightctl: the store is busy\n")
    missing = str(tmp_path / "missing.sock")
    assert run_app(cli.app, "spotlightctl", ["runs", "--socket", missing]) == 69
    err = capsys.readouterr().err
    assert missing in err and "spotlightd run" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [[], ["nonsense"], ["status", "--jsn"], ["agents", "drain"], ["token"],
     ["token", "create", "--uses", "many"], ["token", "create", "--ttl", "soon"]],
)  # fmt: skip
def test_usage_errors_exit_64_with_one_line(arguments, capsys):
    assert run_app(cli.app, "spotlightctl", arguments) == 64
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("spotlightctl: ") and err.count("\n") == 1


def test_durations():
    assert [seconds(text) for text in ("90", "90s", "1.5m", "2h", "1d")] == [
        90, 90, 90, 7200, 86400]  # fmt: skip
    for text in ("", "m", "-3s", "3 weeks", "1e9"):
        with pytest.raises(UsageError, match="not a duration"):
            seconds(text)
    assert [render.duration(s) for s in (5, 200, 7500, 273600)] == [
        "5s", "3m20s", "2h05m", "3d04h"]  # fmt: skip


def test_a_terminal_gets_a_rich_table(ctl, monkeypatch):
    monkeypatch.setattr(render.sys.stdout, "isatty", lambda: True, raising=False)
    code, out, _ = ctl("agents")
    assert code == 0 and "─" in out and "a/2 ü%" in out
