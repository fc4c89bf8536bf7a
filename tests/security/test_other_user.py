"""The control socket as another user of the machine: who may look, who may change things.

Each process here is started as root, loads what it needs, and becomes the other user for good.
"""

import json
import os
import stat
import subprocess
import sys

import pytest

from spotlightd.control.endpoints import ENDPOINTS
from tests.control.conftest import Served
from tests.control.runs import write_run

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="OTHER USERS NOT TESTED: only root can become one"
)

NOBODY = 65534
GROUP, GROUP_ID = "daemon", 1
"""A group that every Linux has, in the place of the operators'."""

COMMAND = """
import contextlib, io, os, sys
import spotlightd.submission
from spotlightd.commands import run_app
from spotlightd.control import cli
uid, groups, words = int(sys.argv[1]), [int(g) for g in sys.argv[2].split()], sys.argv[3:]
with contextlib.redirect_stdout(io.StringIO()):
    # Root's: loads what an answer takes, wherever this interpreter is closed to others.
    run_app(cli.app, "spotlightctl", ["status", *words[-2:]])
os.setgroups(groups); os.setgid(uid); os.setuid(uid)
sys.exit(run_app(cli.app, "spotlightctl", words))
"""
WRITES = """
import http.client, json, os, socket, sys
uid, path = int(sys.argv[1]), sys.argv[2]
os.setgroups([]); os.setgid(uid); os.setuid(uid)
found = {}
for method, address in json.load(sys.stdin):
    connection = http.client.HTTPConnection("x")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(path)
    connection.request(method, address)
    answer = connection.getresponse()
    found[f"{method} {address}"] = [answer.status, json.loads(answer.read()).get("error", "")]
    connection.close()
print(json.dumps(found))
"""


@pytest.fixture
def open_folder(tmp_path):
    """A folder that everybody may enter: only the socket's own mode decides."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and not folder.stat().st_mode & stat.S_IXOTH:
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH | stat.S_IXGRP)
    return tmp_path


@pytest.fixture
def served(open_folder):
    one = Served(open_folder / "control.sock", write_run(open_folder / "state"), GROUP)
    one.start()
    yield one
    one.close()


def ctl(served, *words, groups=""):
    """Run spotlightctl as nobody: (exit code, stdout, stderr)."""
    command = [sys.executable, "-c", COMMAND, str(NOBODY), groups, *words]
    done = subprocess.run(
        [*command, "--socket", str(served.path)], capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def test_as_it_is_made_another_user_can_not_even_open_it(served):
    info = served.path.stat()
    assert (stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid) == (0o660, 0, GROUP_ID)
    code, out, err = ctl(served, "status")
    assert (code, out) == (77, ""), err
    assert err.count("\n") == 1
    assert err.startswith(f"spotlightctl: this user may not open {served.path}: join its group")


def test_opened_to_all_they_may_look_and_change_nothing(served, tmp_path):
    served.path.chmod(0o666)
    code, out, err = ctl(served, "status", "--json")
    assert (code, err) == (0, "") and json.loads(out)["run"] == "words"
    (tmp_path / "run.toml").write_text("[run]\niterations = 3\n")
    (tmp_path / "run.toml").chmod(0o644)
    code, out, err = ctl(served, "runs", "submit", str(tmp_path / "run.toml"))
    assert (code, out) == (77, "") and err.count("\n") == 1
    assert f"user {NOBODY} may only read: POST /v1/runs is for root" in err
    assert f"members of group '{GROUP}'" in err

    # Whatever changes anything, by the table of all addresses.
    addresses = [
        (e.method, e.path.format(agent_id="a-1", pool="spot"))
        for e in ENDPOINTS
        if e.method != "GET"
    ]
    done = subprocess.run(
        [sys.executable, "-c", WRITES, str(NOBODY), str(served.path)],
        input=json.dumps(addresses), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert len(found) == len(addresses) >= 9, done.stderr
    for address, (status, error) in found.items():
        assert status == 403 and f"may only read: {address} is for" in error, address
    assert served.daemon.calls == [], "nothing of it reached the daemon"


def test_a_member_of_the_operators_group_may(served):
    code, out, err = ctl(served, "agents", "drain", "a-1", groups=str(GROUP_ID))
    assert (code, out, err) == (0, "draining a-1\n", "")
    assert served.daemon.calls == [("drain", "a-1", 60.0)]
