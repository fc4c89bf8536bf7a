"""The unit files, as systemd's own tools read them (nothing is installed or started)."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from spotlightd.control.places import SYSTEM_SOCKET
from spotlightd.errors import ExitCode

FOLDER = Path(__file__).parents[2] / "systemd"
UNITS = sorted(path.name for path in FOLDER.iterdir() if path.is_file())
SERVICES = [name for name in UNITS if name.endswith(".service")]


def needs(tool: str):
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"{tool} is not installed")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def units(tmp_path):
    """Copies whose command exists: `verify` would complain about a program not yet installed."""
    for name in UNITS:
        text = re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", (FOLDER / name).read_text())
        (tmp_path / name).write_text(text)
    return tmp_path


def read(name):
    parser = configparser.RawConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(FOLDER / name)
    return parser


@needs("systemd-analyze")
def test_systemd_accepts_every_unit(units):
    command = ["systemd-analyze", "verify", "--recursive-errors=no", "--man=no"]
    result = run(*command, *[str(units / name) for name in UNITS])
    assert result.returncode == 0 and result.stderr == "", result.stderr


@needs("systemd-analyze")
def test_that_check_finds_an_unknown_key(units):
    unit = units / SERVICES[0]
    unit.write_text(unit.read_text().replace("KillMode=", "KilMode="))
    result = run("systemd-analyze", "verify", "--recursive-errors=no", "--man=no", str(unit))
    assert "KilMode" in result.stderr


@needs("systemd-analyze")
@pytest.mark.parametrize("name", SERVICES)
def test_exposure_stays_low(units, name):
    result = run("systemd-analyze", "security", "--offline=yes", "--threshold=25", units / name)
    assert result.returncode == 0, result.stdout[-400:]


@needs("systemd-sysusers")
def test_the_user_gets_the_gpus_groups(tmp_path):
    (tmp_path / "etc").mkdir()
    conf = FOLDER / "sysusers.d/spotlight.conf"
    result = run("systemd-sysusers", f"--root={tmp_path}", conf)
    assert result.returncode == 0, result.stderr
    groups = dict(line.split(":")[::3] for line in (tmp_path / "etc/group").read_text().split())
    assert groups["video"] == groups["render"] == "spotlight" and "spotlight" in groups


def test_what_cannot_cure_itself_is_not_restarted():
    daemon = read("spotlightd.service")["Service"]["RestartPreventExitStatus"].split()
    agent = read("spotlight-agent.service")["Service"]["RestartPreventExitStatus"].split()
    hopeless = {ExitCode.VERSION_SKEW, ExitCode.NOT_AUTHORISED, ExitCode.INPUT}
    hopeless |= {ExitCode.USAGE}
    assert set(map(int, daemon)) == hopeless
    assert set(map(int, agent)) == hopeless | {ExitCode.DRAINED}


@pytest.mark.parametrize("name", SERVICES)
def test_gpu_and_generated_code_stay_usable(name):
    service = read(name)["Service"]
    assert service["PrivateDevices"] == "no" and service["MemoryDenyWriteExecute"] == "no"
    assert service["ProcSubset"] == "all"
    assert "DeviceAllow=char-nvidia-frontend rw" in (FOLDER / name).read_text()


def test_socket_unit_listens_where_clients_look():
    socket = read("spotlightd.socket")["Socket"]
    assert Path(socket["ListenStream"]) == SYSTEM_SOCKET and socket["SocketMode"] == "0660"
    assert read("spotlightd.service")["Service"]["RuntimeDirectoryPreserve"] == "yes"
