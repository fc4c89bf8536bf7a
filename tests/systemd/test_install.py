"""`spotlightd install` and `spotlight-agent install` into a folder that stands for a system."""

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from agent import cli as agent_cli
from agent.install import check_options, install
from spotlightd import cli
from spotlightd.commands import run_app
from spotlightd.config import load
from spotlightd.errors import InputError, NotAuthorisedError
from spotlightd.fleet.keys import read_keys
from spotlightd.install import reach
from spotlightd.install.command import Wanted
from spotlightd.install.units import AGENT, DAEMON, quoted
from spotlightd.wire.token import Token, make_token

TOOLS = ("systemd-sysusers", "systemd-tmpfiles", "systemctl")
needs_systemd = pytest.mark.skipif(
    os.geteuid() != 0 or any(shutil.which(tool) is None for tool in TOOLS),
    reason=f"INSTALLATION NOT TESTED: it needs root, and {', '.join(TOOLS)}",
)


@pytest.fixture
def system(tmp_path):
    root = tmp_path / "root"
    for name in ("etc", "var/lib"):
        (root / name).mkdir(parents=True)
    return root


@pytest.fixture
def call(capsys):
    """Run a command line: (exit code, stdout, stderr)."""

    def run(name, *arguments):
        app = {"spotlightd": cli.app, "spotlight-agent": agent_cli.app}[name]
        return run_app(app, name, [str(word) for word in arguments]), *capsys.readouterr()

    return run


def tree(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file with mode, time of its last change, and content."""
    found = {}
    for path in sorted(root.rglob("*")):
        info = path.lstat()
        if stat.S_ISREG(info.st_mode):
            name = str(path.relative_to(root))
            found[name] = (stat.S_IMODE(info.st_mode), info.st_mtime_ns, path.read_bytes())
    return found


@needs_systemd
def test_the_daemon_is_installed_once(call, system):
    code, out, err = call("spotlightd", "install", "--root", system, "--host", "10.0.0.7")
    assert (code, err) == (0, "") and "write" in out
    first = tree(system)
    unit = first["etc/systemd/system/spotlightd.service"][2].decode()
    command = Path(sys.executable).parent / "spotlightd"
    assert f"\nExecStart={command} serve --config /etc/spotlight/spotlightd.toml" in unit
    config, _ = load(system / "etc/spotlight/spotlightd.toml", environ={})
    assert (config.link.host, config.link.bind) == ("10.0.0.7", "0.0.0.0")
    assert config.link.link_port and config.link.second_enrol_port
    wants = system / "etc/systemd/system"
    assert (wants / "multi-user.target.wants/spotlightd.service").is_symlink()
    assert (wants / "sockets.target.wants/spotlightd.socket").is_symlink()

    code, out, _ = call("spotlightd", "install", "--root", system)
    assert code == 0 and "everything was in place" in out and "write" not in out
    assert tree(system) == first, "a second installation touches nothing"


@needs_systemd
def test_who_may_read_what(call, system):
    call("spotlightd", "install", "--root", system)
    call("spotlight-agent", "install", "--root", system)
    groups = (line.split(":") for line in (system / "etc/group").read_text().splitlines())
    gid = {name: int(number) for name, _, number, _ in groups}["spotlight"]
    folder = system / "etc/spotlight"
    for path, mode, group in (
        (folder, 0o750, gid),
        (folder / "spotlightd.toml", 0o640, gid),
        (folder / "server.key", 0o600, 0),
        (folder / "token", 0o600, 0),
    ):
        info = path.stat()
        assert (stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid) == (mode, 0, group), path
    assert zmq.curve_public(read_keys(folder / "server.key").secret.encode())


@needs_systemd
def test_what_the_operator_wrote_stays(call, system):
    call("spotlightd", "install", "--root", system)
    config, key = system / "etc/spotlight/spotlightd.toml", system / "etc/spotlight/server.key"
    config.write_text("[run]\niterations = 7\n")
    before = key.read_bytes()
    unit = system / "etc/systemd/system/spotlightd.service"
    unit.write_text("[Service]\nExecStart=/old/release\n")
    code, out, _ = call("spotlightd", "install", "--root", system, "--host", "elsewhere")
    assert code == 0 and "replace" in out
    assert "/old/release" not in unit.read_text()
    assert config.read_text() == "[run]\niterations = 7\n" and key.read_bytes() == before


@needs_systemd
def test_a_key_that_tokens_pin_already_is_taken_over(call, system):
    from spotlightd.fleet.keys import server_keys

    keys = server_keys(system / "var/lib/spotlight", environ={})
    call("spotlightd", "install", "--root", system)
    assert read_keys(system / "etc/spotlight/server.key") == keys


@needs_systemd
def test_uninstalling_leaves_only_data_and_purging_nothing(call, system):
    before = set(tree(system))
    for program in ("spotlightd", "spotlight-agent"):
        assert call(program, "install", "--root", system)[0] == 0
        (system / "var/lib" / {"spotlightd": "spotlight"}.get(program, program)).mkdir()
    (system / "var/lib/spotlight/spotlight.db").write_bytes(b"a run")
    (system / "var/lib/spotlight-agent/agent.json").write_bytes(b"{}")

    code, out, _ = call("spotlightd", "install", "--root", system, "--uninstall")
    assert code == 0 and "left in place: /var/lib/spotlight, /etc/spotlight" in out
    units = system / "etc/systemd/system"
    assert not list(units.rglob("spotlightd.*")), "no unit and no link to one"
    assert (system / "etc/sysusers.d/spotlight.conf").exists(), "the agent needs it"

    assert call("spotlight-agent", "install", "--root", system, "--uninstall")[0] == 0
    left = set(tree(system)) - before
    users = re.compile(r"etc/(passwd|g?shadow|group|\.pwd\.lock)-?$")
    assert {name for name in left if not users.match(name)} == {
        "etc/spotlight/spotlightd.toml",
        "etc/spotlight/server.key",
        "etc/spotlight/token",
        "var/lib/spotlight/spotlight.db",
        "var/lib/spotlight-agent/agent.json",
    }
    for program in ("spotlightd", "spotlight-agent"):
        code, out, _ = call(program, "install", "--root", system, "--uninstall", "--purge")
        assert code == 0
    assert [name for name in set(tree(system)) - before if not users.match(name)] == []


def test_a_dry_run_writes_nothing(call, system):
    code, out, _ = call("spotlightd", "install", "--root", system, "--dry-run")
    assert code == 0 and out.endswith("spotlightd: nothing was done\n")
    assert f"write      {system.resolve()}/etc/systemd/system/spotlightd.socket" in out
    for tool in TOOLS:
        assert f"run        {tool} --root={system.resolve()}" in out
    assert tree(system) == {}
    (system / "var/lib/spotlight").mkdir()
    (system / "var/lib/spotlight/spotlight.db").write_bytes(b"a run")
    before = tree(system)
    call("spotlightd", "install", "--root", system, "--dry-run", "--uninstall", "--purge")
    assert tree(system) == before


@needs_systemd
def test_the_agents_unit_carries_its_options_and_its_token(system, capsys):
    public = zmq.curve_keypair()[0].decode()
    token = Token("10.0.0.7:7401", public, "tok", "the-secret")
    install(Wanted(root=system), ["--workers", "8", "--zone", "a b%c"], token)
    unit = (system / "etc/systemd/system/spotlight-agent.service").read_text()
    assert '--state-dir /var/lib/spotlight-agent --workers 8 --zone "a b%%c"\n' in unit
    assert (system / "etc/spotlight/token").read_text() == make_token(token) + "\n"
    assert "the-secret" not in unit and "the-secret" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("program", "arguments", "code", "says"),
    [
        ("spotlightd", ["--purge"], 64, "--purge removes data and needs --uninstall"),
        ("spotlightd", ["--start", "--root", "/tmp"], 64, "--start goes neither"),
        ("spotlightd", ["--root", "/nowhere"], 78, "make it first"),
        ("spotlightd", ["--host", 'a"b', "--dry-run"], 64, "not a host name"),
        ("spotlight-agent", ["--", "--workres", "8"], 64, "--workres"),
        ("spotlight-agent", ["--", "--workers", "0"], 64, "--workers"),
    ],
)
def test_wrong_usage_is_one_line(call, program, arguments, code, says):
    got, _, err = call(program, "install", *arguments)
    assert (got, err.count("\n")) == (code, 1) and says in err


def test_only_root_installs_into_this_system(call, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for program in ("spotlightd", "spotlight-agent"):
        code, _, err = call(program, "install")
        assert code == 77 and f"use sudo for {program}" in err
    with pytest.raises(NotAuthorisedError):
        from agent.install import join_and_install

        join_and_install(None, None, [])


def test_a_system_without_systemd_is_told_so(call, system, monkeypatch):
    monkeypatch.setenv("PATH", str(system))
    code, _, err = call("spotlightd", "install", "--root", system)
    assert code == 78 and "this system does not run systemd" in err


@pytest.mark.parametrize("folder", ["/home/ada/venv/bin/spotlightd", "/root/x", "/tmp/x"])
def test_what_the_sandbox_hides_is_refused(folder):
    assert "it never sees" in reach.obstacle(Path(folder))


def test_what_others_may_not_read_is_refused(monkeypatch):
    # Not below /tmp, which the sandbox replaces.
    folder = Path(shutil.os.getcwd()) / ".reach-test"
    if any(folder.is_relative_to(hidden) for hidden in reach.HIDDEN):
        pytest.skip("the checkout itself is where the sandbox does not see it")
    folder.mkdir(mode=0o700)
    try:
        inside = folder / "python"
        inside.write_text("")
        assert reach.obstacle(inside) == f"{folder} is closed to others"
        folder.chmod(0o755)
        inside.chmod(0o644)
        assert reach.obstacle(inside) == ""
    finally:
        shutil.rmtree(folder)
    monkeypatch.setattr(sys, "executable", "/home/ada/venv/bin/python")
    with pytest.raises(InputError, match="no spotlightd beside"):
        reach.installed_command("spotlightd")


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("--zone", "--zone"),
        ("us-east-1a", "us-east-1a"),
        ("a b", '"a b"'),
        ("50%", "50%%"),
        ("$HOME", '"$$HOME"'),
        ('say "x"\\', '"say \\"x\\"\\\\"'),
        ("", '""'),
    ],
)
def test_words_are_quoted_as_systemd_reads_them(word, line):
    assert quoted(word) == line


def test_options_of_join_pass_and_others_do_not():
    import typer

    command = typer.main.get_command(agent_cli.app)
    check_options(["--workers", "8", "--json-logs"], command)
    with pytest.raises(Exception, match="no-such"):
        check_options(["--no-such"], command)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_accepts_what_is_written(tmp_path):
    """With real options, and a program that exists."""
    for service in (DAEMON, AGENT):
        for path, text in service.unit_files(["/bin/true", "--zone", "a b%c$d"]).items():
            (tmp_path / path.name).write_text(text)
    result = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", "--man=no", *tmp_path.iterdir()],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (result.returncode, result.stderr) == (0, "")
