"""A run's configuration on its way: what is sent, and what it comes to over the daemon's own."""

from pathlib import Path

import msgspec
import pytest

from spotlightd.config import all_keys, load
from spotlightd.control.api import RunRequest
from spotlightd.errors import ConfigError
from spotlightd.submission import check_goes_on, composed, read_request, states_a_run

RUNS = Path("/var/lib/spotlight/runs")


def own(**flags):
    return load(None, {key.replace("__", "."): value for key, value in flags.items()}, {})


def request(config=None, **flags):
    sets = {key.replace("__", "."): value for key, value in flags.items()}
    return RunRequest(config=config or {}, set=sets, file="/home/ann/signs.toml")


def test_paths_become_absolute_where_they_are_written(tmp_path):
    folder = tmp_path / "ann"
    folder.mkdir()
    (folder / "signs.toml").write_text(
        '[run]\nmodel = "models/tiny"\nheld_out = "held_out"\nprompts = "/srv/prompts.txt"\n'
        '[rewards]\nclip_score_model = "clip"\n'
    )
    sets = {"run.prompts": "mine.txt", "run.seed": "7", "run.name": "models"}
    sent = read_request(Path("ann/signs.toml"), sets, tmp_path)
    assert sent.file == str(folder / "signs.toml")
    assert sent.config["run"] == {
        "model": str(folder / "models/tiny"), "held_out": "held_out", "prompts": "/srv/prompts.txt",
    }  # fmt: skip
    assert sent.config["rewards"] == {"clip_score_model": str(folder / "clip")}
    assert sent.set == {
        "run.prompts": f'"{tmp_path}/mine.txt"', "run.seed": "7", "run.name": "models",
    }  # fmt: skip
    embedded = read_request(Path("ann/signs.toml"), {"run.prompts": '"train"'}, tmp_path)
    assert embedded.set == {"run.prompts": '"train"'}
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*none\.toml"):
        read_request(Path("none.toml"), {}, tmp_path)


def test_a_run_may_switch_off_what_the_daemons_own_configuration_describes():
    mine = own(planner__mode="fixed", planner__candidates="48")
    config, _ = composed(*mine, request({"planner": {"mode": "off"}}), RUNS)
    assert config.planner.mode == "off"
    with pytest.raises(ConfigError, match=r"signs\.toml: 'planner\.max_candidates' has no effect"):
        composed(*mine, request({"planner": {"max_candidates": 64}}), RUNS)


def test_flags_come_before_the_file_and_that_before_the_daemons_own():
    config, origins = composed(
        *own(run__iterations="9", ledger__reserved_price="4", planner__group_size="8"),
        request({"run": {"iterations": 5, "seed": 3}, "planner": {"group_size": 12}},
                run__seed="4", run__name="signs"),
        RUNS,
    )  # fmt: skip
    assert (config.run.iterations, config.run.seed, config.planner.group_size) == (5, 4, 12)
    assert config.ledger.reserved_price == 4 and config.store.state_dir == str(RUNS / "signs")
    assert origins["run.iterations"] == "/home/ann/signs.toml"
    assert origins["run.seed"] == origins["ledger.reserved_price"] == "command line"
    assert set(origins) == set(all_keys()) and origins["run.prompts"] == "default"


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"run": {"iterationz": 5}}, "signs.toml: unknown key 'run.iterationz'; did you mean"),
        ({"run": {"iterations": "many"}}, "signs.toml: bad value for 'run.iterations'"),
        ({"runs": {}}, r"unknown section \[runs\]"),
        ({"link": {"host": "10.0.0.1"}}, "signs.toml: 'link.host' is the daemon's own"),
        ({"control": {"group": "all"}}, "'control.group' is the daemon's own"),
        ({"store": {"state_dir": "/tmp/x"}}, "'store.state_dir' is the daemon's own"),
        ({"run": {"prompts": "mine.txt"}}, "signs.toml: 'run.prompts' is the relative path"),
        ({"run": {"name": "../up"}}, r"run.name '\.\./up' becomes a folder's name"),
        ({"run": {"name": ".."}}, "becomes a folder's name"),
        ({"planner": {"mode": "fixed", "candidates": 3}}, "planner.candidates 3 is below"),
        ({"trainer": {"nft_beta": 1.0}}, "signs.toml: 'trainer.nft_beta' has no effect with"),
        ({"trainer": {"learning_rate": None}}, "bad value for 'trainer.learning_rate'"),
    ],
)
def test_what_the_daemon_refuses_is_said_in_the_files_own_words(config, says):
    with pytest.raises(ConfigError, match=says):
        composed(*own(), request(config), RUNS)


def test_a_nested_value_without_end_is_text():
    with pytest.raises(ConfigError, match=r"bad value for .run\.seed."):
        composed(*own(), request(run__seed="[" * 20_000), RUNS)


def test_what_a_daemon_states_of_a_run_begins_a_run():
    assert states_a_run(own(run__model="/srv/model")[1])
    assert not states_a_run(own(planner__group_size="8", link__host="h")[1])


def test_the_same_name_goes_on_only_with_the_same_run():
    config, origins = composed(*own(), request(run__iterations="99", planner__group_size="8"), RUNS)
    before = msgspec.to_builtins(own()[0])
    check_goes_on(config, origins, before)
    for key, value in (("seed", 2), ("model", "/srv/other"), ("prompts", "/srv/p.txt")):
        other = {**before, "run": {**before["run"], key: value}}
        with pytest.raises(ConfigError, match=rf"began with run\.{key} = {value!r}.*run.name=NAME"):
            check_goes_on(config, origins, other)
