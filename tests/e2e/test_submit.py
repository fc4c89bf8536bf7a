"""A daemon that waits, as systemd starts it: runs come by the socket, and outlive kill -9."""

import json
import signal
import subprocess

import pytest

from tests.e2e.conftest import BIN, SMALL, interrupt
from tests.e2e.test_control import ctl

pytestmark = [pytest.mark.slow, pytest.mark.fault, pytest.mark.timeout(300)]

DAEMONS_OWN = ("control.dashboard_port", "telemetry.trackers", "weights.chunk_bytes")


def serve(host, name):
    flags = {key: SMALL[key] for key in DAEMONS_OWN}
    flags |= {"control.socket": f'"{host.socket}"', "store.state_dir": f'"{host.state}"'}
    sets = [part for key, value in flags.items() for part in ("--set", f"{key}={value}")]
    return host.start(name, "spotlightd", "serve", *sets)


def write_config(host):
    """The embedded run, made small, with its prompts beside the file."""
    sections: dict[str, list[str]] = {}
    for key, value in SMALL.items():
        section, name = key.split(".")
        if key not in DAEMONS_OWN:
            text = value if value[0].isdigit() else json.dumps(value)
            sections.setdefault(section, []).append(f"{name} = {text}\n")
    sections["run"] += ['name = "signs"\n', 'prompts = "signs.txt"\n']
    (host.root / "signs.txt").write_text('a sign that reads "OPEN"\na sign that reads "TEA"\n')
    path = host.root / "signs.toml"
    path.write_text("".join(f"[{name}]\n{''.join(lines)}" for name, lines in sections.items()))
    return path


def refused(host, code, *arguments):
    """What a refused command says: one line, and nothing on stdout."""
    result = subprocess.run(
        [str(BIN / "spotlightctl"), *arguments, "--socket", str(host.socket)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (code, "", 1), result
    return result.stderr


def test_a_run_is_submitted_killed_and_done_and_another_one_follows(host):
    config = write_config(host)
    first = serve(host, "first")
    assert host.wait_for(lambda status: True).run_state == "waiting"
    assert "none: spotlightctl runs submit" in ctl(host, "status")
    assert "no run goes on here" in refused(host, 75, "token", "create")

    # Refused, in the words of the file's own errors; nothing begins.
    wrong = config.with_name("wrong.toml")
    wrong.write_text(config.read_text().replace("group_size", "groop_size"))
    said = refused(host, 78, "runs", "submit", str(wrong))
    assert f"{wrong}: unknown key 'planner.groop_size'; did you mean 'planner.group_size'?" in said
    prompts = host.root / "blank.txt"
    prompts.write_text('a sign that reads "A"\n\na sign that reads "B"\n')
    said = refused(host, 78, "runs", "submit", str(config), "--prompts", str(prompts))
    assert f"{prompts}, line 2: the line is blank" in said
    assert json.loads(ctl(host, "runs", "--json")) == []

    # Accepted is durable: killed at once, the next daemon goes on with it by itself.
    answer = json.loads(ctl(host, "runs", "submit", str(config), "--json"))
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert (answer["run"], answer["iteration"]) == ("signs", 0)
    second = serve(host, "second")
    status = host.wait_for(lambda status: status.run_state == "running")
    assert (status.run, status.state_dir) == ("signs", answer["state_dir"])
    origins = json.loads(ctl(host, "config", "show", "--json"))
    assert origins["planner.group_size"]["origin"] == str(config)
    assert origins["run.prompts"]["value"] == str(host.root / "signs.txt")
    said = refused(host, 75, "runs", "submit", str(config), "--set", "run.name=other")
    assert "run 'signs' goes on here" in said and "runs stop" in said

    # Done: it waits again, shows the run's pictures, and knows it.
    status = host.wait_for(lambda status: status.run_state == "waiting", 150)
    assert (status.run, status.iteration, status.lost) == ("signs", 2, 0)
    (row,) = json.loads(ctl(host, "runs", "--json"))
    assert (row["name"], row["state"], row["iteration"]) == ("signs", "done", 2)
    samples = json.loads(ctl(host, "samples", "--kind", "evaluate", "--json"))["samples"]
    assert samples and all(sample["has_image"] for sample in samples)
    assert "pytorch_lora_weights" in ctl(host, "export", str(host.root / "adapter"))
    said = refused(host, 64, "runs", "submit", str(config))
    assert "run 'signs' is done (2 iterations)" in said and "run.name=NAME" in said
    said = refused(host, 78, "runs", "submit", str(config), "--set", "run.seed=7",
                   "--set", "run.iterations=3")  # fmt: skip
    assert "began with run.seed = 1, and this says 7" in said

    # The next one, in the same process; stopped, it is listed as that, and the daemon waits.
    ctl(host, "runs", "submit", str(config), "--set", "run.name=other")
    host.wait_for(lambda status: (status.run, status.run_state) == ("other", "running"))
    assert "running" in ctl(host, "runs") and "signs" in ctl(host, "runs")
    ctl(host, "runs", "stop")
    host.wait_for(lambda status: status.run_state == "waiting", 60)
    rows = json.loads(ctl(host, "runs", "--json"))
    assert [(row["name"], row["state"]) for row in rows] == [
        ("other", "stopped"),
        ("signs", "done"),
    ]
    assert second.poll() is None and interrupt(second) == 0
    assert not host.socket.exists() and "Traceback" not in host.log("second")
