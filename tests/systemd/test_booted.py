"""The units on a system that has really booted: systemd as process 1, in a container of its own.

The container sees this machine's /usr read-only, and this interpreter and checkout where a user
would have them, in /opt. Nothing of this machine's systemd is touched.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
MASKED = (
    "systemd-firstboot", "systemd-networkd", "systemd-resolved", "systemd-timesyncd", "ldconfig",
    "getty@", "console-getty", "systemd-logind", "systemd-journal-flush", "systemd-hwdb-update",
    "systemd-update-utmp", "dbus",
)  # fmt: skip
"""What a container without network, seats and terminals does not need."""
DRIVER = """\
[Unit]
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
TimeoutStartSec=600
ExecStart=/opt/spotlight/bin/python /opt/src/tests/systemd/booted.py /out/report.json
StandardOutput=file:/out/transcript
StandardError=inherit
"""


def build(root: Path) -> list[str]:
    """Make the container's file system; return the binds that complete it."""
    for name in ("usr", "etc/systemd/system", "var/lib", "var/log", "run", "tmp", "dev", "proc",
                 "sys", "root", "out", "opt/src", "opt/deps", "opt/python"):  # fmt: skip
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    for name in ("passwd", "group", "nsswitch.conf"):
        if Path("/etc", name).exists():
            shutil.copy(Path("/etc", name), root / "etc" / name)
    shutil.copy("/usr/lib/os-release", root / "etc/os-release")
    (root / "etc/shadow").write_text("root:*:19000:0:99999:7:::\n")
    (root / "etc/ld.so.conf").write_text("/opt/python/lib\n")
    for name in MASKED:
        (root / f"etc/systemd/system/{name}.service").symlink_to("/dev/null")
    (root / "etc/systemd/system/driver.service").write_text(DRIVER)
    virtual_environment(root)
    return [
        "--bind-ro=/usr",
        f"--bind-ro={sys.base_prefix}:/opt/python",
        f"--bind-ro={sysconfig.get_path('purelib')}:/opt/deps",
        f"--bind-ro={CHECKOUT}:/opt/src",
    ]


def virtual_environment(root: Path) -> None:
    """Make /opt/spotlight, as `python3 -m venv` and pip would, of what is installed here."""
    home = root / "opt/spotlight"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = home / "lib" / version / "site-packages"
    site.mkdir(parents=True)
    (home / "bin").mkdir()
    (home / "pyvenv.cfg").write_text("home = /opt/python/bin\n")
    (home / "bin/python").symlink_to(f"/opt/python/bin/{version}")
    lines = ("/opt/src", "import site; site.addsitedir('/opt/deps')", "")
    (site / "spotlight.pth").write_text("\n".join(lines))
    programs = {"spotlightd": "spotlightd.cli", "spotlight-agent": "agent.cli",
                "spotlightctl": "spotlightd.control.cli"}  # fmt: skip
    for program, module in programs.items():
        script = home / "bin" / program
        script.write_text(
            f"#!/opt/spotlight/bin/python\nfrom {module} import main\nraise SystemExit(main())\n"
        )
        script.chmod(0o755)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    if os.geteuid() != 0 or shutil.which("systemd-nspawn") is None:
        pytest.skip("NO SYSTEM WAS BOOTED: it takes root, and systemd-nspawn (systemd-container)")
    root = tmp_path_factory.mktemp("booted") / "root"
    binds = build(root)
    command = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit"]
    command += ["--private-network", *binds, "--directory", str(root)]
    command += ["--boot", "systemd.unit=driver.service"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=700
    )
    found = root / "out/report.json"
    if not found.exists():
        said = (done.stdout + done.stderr)[-1500:]
        if not (root / "out/transcript").exists():
            pytest.skip(f"NO SYSTEM WAS BOOTED: systemd-nspawn cannot boot one here: {said}")
        pytest.fail((root / "out/transcript").read_text()[-3000:])
    loaded = json.loads(found.read_text())
    if loaded["error"]:
        pytest.fail(json.dumps(loaded, indent=1).replace("\\n", "\n"))
    print((root / "out/transcript").read_text())
    return loaded


pytestmark = [pytest.mark.slow, pytest.mark.fault, pytest.mark.timeout(720)]


def test_the_service_cannot_read_its_key_from_disk(report):
    assert report["secret_key_refused"] != 0


def test_the_unit_waits_for_a_run_and_takes_one(report):
    assert report["waits"] == ["waiting", "waiting for a run"]
    assert report["runs"] == ["words", "training"]


def test_a_second_unit_joins_and_stops_in_time_with_nothing_lost(report):
    assert report["agent_active"] == "active"
    assert report["stop_s"] < 25 and report["stop_code"] == 3
    assert report["stop_result"] == "success", "systemd had to kill nothing"
    assert report["lost_after_stop"] == 0 and report["agents_after_stop"] == {"gone": 1}
    assert "everything is committed" in report["agent_log"]


def test_a_used_up_token_is_no_obstacle_to_an_agent_that_has_joined(report):
    assert report["agents_after_start"] == {"live": 1}


def test_a_killed_daemon_comes_back_by_itself(report):
    assert report["restarts"] == 1 and report["lost_after_kill"] == 0
    assert report["back_s"] < 60
    assert report["agent_restarts"] == 0, "its agent rejoined without being touched"


def test_a_run_ends_and_the_next_one_finds_daemon_and_agent_where_they_are(report):
    state = {"ActiveState": "active", "SubState": "running", "NRestarts": "1"}
    state |= {"WatchdogUSec": "30s"}
    assert report["between"] == state and report["second_run"] == ["words-2", state]


def test_no_secret_is_in_the_journal(report):
    assert report["log_secrets"] == []


def test_uninstalling_leaves_only_data(report):
    assert report["units_left"] == [] and report["active_left"] == [""]
    assert report["data_left"] == [
        "/etc/spotlight/server.key", "/etc/spotlight/spotlightd.toml", "/etc/spotlight/token"
    ]  # fmt: skip
    assert report["state_left"]
