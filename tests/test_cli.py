import json
import sys
import types

import pytest

from spotlightd import cli, config
from spotlightd.commands import run_app
from spotlightd.errors import TryAgainError


@pytest.fixture
def daemon(capsys):
    """Run spotlightd: (exit code, stdout, stderr)."""

    def run(*arguments):
        code = run_app(cli.app, "spotlightd", arguments)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def fake_main(monkeypatch):
    """Stand in for the daemon itself, and keep what it is started with."""
    seen = {}

    def run(settings, origins):
        seen.update(settings=settings, origins=origins)
        return seen.get("code", 0)

    module = types.ModuleType("spotlightd.main")
    module.run = run
    monkeypatch.setitem(sys.modules, "spotlightd.main", module)
    monkeypatch.setattr("spotlightd.main", module, raising=False)
    monkeypatch.setattr(cli.logs, "configure", lambda *args, **kwargs: seen.update(logs=kwargs))
    return seen


def test_run_passes_the_configuration_on(daemon, fake_main, tmp_path):
    path = tmp_path / "spotlight.toml"
    path.write_text("[run]\niterations = 7\nseed = 5\n")
    state = tmp_path / "state"
    assert daemon(
        "run", "--config", str(path), "--set", "run.seed=9", "--set", "run.name=a=b",
        "--state-dir", str(state), "--json-logs",
    )[0] == 0  # fmt: skip
    settings, origins = fake_main["settings"], fake_main["origins"]
    assert (settings.run.iterations, settings.run.seed, settings.run.name) == (7, 9, "a=b")
    assert settings.store.state_dir == str(state)
    assert origins["run.iterations"] == str(path) and origins["run.seed"] == "command line"
    assert fake_main["logs"] == {"as_json": True}


def test_exit_code_is_the_daemons(daemon, fake_main):
    fake_main["code"] = 75
    assert daemon("run")[0] == 75


def test_designed_errors_of_the_daemon_are_one_line(daemon, fake_main, monkeypatch):
    def busy(settings, origins):
        raise TryAgainError("another daemon uses\n/state")

    monkeypatch.setattr(sys.modules["spotlightd.main"], "run", busy)
    assert daemon("run") == (75, "", "spotlightd: another daemon uses /state\n")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["run", "--set", "run.iteratons=3"], 78, "did you mean 'run.iterations'"),
        (["run", "--set", "run.iterations=-1"], 78, "run.iterations"),
        (["run", "--set", "iterations=3"], 78, "section.key=value"),
        (["config", "check", "--config", "/nowhere.toml"], 78, "/nowhere.toml"),
        (["run", "--set", "run.iterations"], 64, "expected section.key=value"),
        (["run", "--wrong"], 64, "see `spotlightd run --help`"),
        ([], 64, "see `spotlightd --help`"),
    ],
)
def test_mistakes_are_one_line(daemon, arguments, code, says):
    got, out, err = daemon(*arguments)
    assert (got, out) == (code, "") and says in err and err.count("\n") == 1


def test_config_check(daemon):
    assert daemon("config", "check")[:2] == (0, "the configuration is valid\n")


def test_config_show_can_be_kept_as_a_file(daemon, tmp_path):
    path = tmp_path / "kept.toml"
    path.write_text(daemon("config", "show", "--set", "run.seed=77", "--origin")[1])
    kept, origins = config.load(path, environ={})
    assert kept.run.seed == 77 and origins["run.seed"] == str(path)
    assert kept.sampler == config.Config().sampler


def test_config_show_tells_origins(daemon, monkeypatch):
    monkeypatch.setenv("SPOTLIGHT_RUN_SEED", "12")
    rows = json.loads(daemon("config", "show", "--origin", "--json")[1])
    assert rows["run.seed"] == {"value": 12, "origin": "environment SPOTLIGHT_RUN_SEED"}
    assert set(rows) == set(config.all_keys())
    assert json.loads(daemon("config", "show", "--json")[1])["run.seed"] == 12


def test_an_ordinary_user_gets_folders_of_their_own(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/home/u/.state")
    loaded = config.load(None, {"control.socket": '"/x/c.sock"'}, environ={})
    mine, origins = cli.user_defaults(*loaded, is_system=False)
    assert mine.store.state_dir == "/home/u/.state/spotlight"
    assert mine.control.socket == "/x/c.sock" and origins["control.socket"] == "command line"
    assert "other than root" in origins["store.state_dir"]
    assert cli.user_defaults(*loaded, is_system=True) == loaded


def test_a_service_has_the_systems_folders(daemon, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 997)
    assert '/var/lib/spotlight"' not in daemon("config", "show")[1]
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/spotlight")
    shown = daemon("config", "show")[1]
    assert 'store.state_dir = "/var/lib/spotlight"' in shown
    assert 'control.socket = "/run/spotlight/control.sock"' in shown
