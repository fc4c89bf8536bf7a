import os
import re
from pathlib import Path

import pytest

from spotlightd import config
from spotlightd.errors import ConfigError

DOCS = Path(__file__).parents[1] / "docs"


def load(tmp_path, text="", flags=None, environ=None):
    path = tmp_path / "spotlight.toml"
    path.write_text(text)
    return config.load(path, flags, environ or {})


def test_defaults_are_valid():
    loaded, origins = config.load(None, environ={})
    assert loaded == config.Config() and set(origins.values()) == {"default"}


def test_flag_over_environment_over_file_over_default(tmp_path):
    text = "[run]\nseed = 2\niterations = 2\nname = 'file'\n"
    environ = {"SPOTLIGHT_RUN_SEED": "3", "SPOTLIGHT_RUN_ITERATIONS": "3", "PATH": "x"}
    loaded, origins = load(tmp_path, text, {"run.seed": "4"}, environ)
    assert (loaded.run.seed, loaded.run.iterations, loaded.run.name) == (4, 3, "file")
    assert origins["run.seed"] == "command line"
    assert origins["run.iterations"] == "environment SPOTLIGHT_RUN_ITERATIONS"
    assert origins["run.name"].endswith("spotlight.toml")
    assert origins["run.model"] == "default"


def test_values_of_flags_are_toml_or_plain_text(tmp_path):
    flags = {
        "sampler.sde_window_starts": "[0, 2]", "run.trainer_rolls_out": "false",
        "planner.mode": "off", "run.prompts": "/a b/c.txt", "trainer.learning_rate": "1e-4",
    }  # fmt: skip
    loaded, _ = load(tmp_path, flags=flags)
    assert loaded.sampler.sde_window_starts == (0, 2) and loaded.run.trainer_rolls_out is False
    assert loaded.planner.mode == "off" and loaded.run.prompts == "/a b/c.txt"
    assert loaded.trainer.learning_rate == 1e-4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[run]\niteratons = 3", "unknown key 'run.iteratons'; did you mean 'run.iterations'"),
        ("[rnu]\nseed = 3", "'rnu.seed'; did you mean 'run.seed'"),
        ("[nothing_like_it]", "unknown section [nothing_like_it]"),
        ("seed = 3", "'seed' stands outside a section"),
        ("[run\nseed = 3", "not valid TOML"),
        ("[run]\nseed = 'x'", "bad value for 'run.seed'"),
        ("[run]\nseed = -1", "bad value for 'run.seed'"),
        ("[run]\nseed = 9223372036854775808", "'run.seed'"),
        ("[sampler]\nsde_form = 'euler'", "bad value for 'sampler.sde_form'"),
        ("[sampler]\nsde_window_starts = [0, 'a']", "sampler.sde_window_starts[1]"),
        ("[sampler]\nsde_window_size = 10", "never stochastic"),
        ("[sampler]\nsde_window_starts = []", "never stochastic"),
        ("[trainer]\nclip_range = 1e-3\nclip_range_nats = 2.0", "give one"),
        ("[planner]\nmode = 'fixed'\ncandidates = 8", "candidates 8 is below planner.group_size"),
        ("[planner]\nmax_candidates = 8", "max_candidates 8 is below planner.group_size"),
        ("[planner]\nrank_by = 'hps'", "not scored"),
        ("[fleet]\nsuspect_s = 0.5", "heartbeat_s < suspect_s"),
    ],
)
def test_mistakes_in_a_file_get_a_sentence(tmp_path, text, says):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert says in str(caught.value)


@pytest.mark.parametrize("raw", [b"\xff\xfe[run]", b"[run]\x00"])
def test_a_file_that_is_no_text(tmp_path, raw):
    path = tmp_path / "c.toml"
    path.write_bytes(raw)
    with pytest.raises(ConfigError, match=r"c\.toml"):
        config.load(path, environ={})


def test_a_missing_file_and_a_folder(tmp_path):
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(ConfigError, match=str(path)):
            config.load(path, environ={})


def test_unknown_variables_are_errors_and_foreign_ones_are_not(tmp_path):
    with pytest.raises(ConfigError, match=r"SPOTLIGHT_RUN_SEDE.*SPOTLIGHT_RUN_SEED'"):
        load(tmp_path, environ={"SPOTLIGHT_RUN_SEDE": "1"})
    load(tmp_path, environ={"SPOTLIGHT_ELSEWHERE": "1", "SPOTLIGHTED_RUN": "1"})


@pytest.mark.parametrize(
    ("key", "value"),
    [("run.seed", "1" + "0" * 30), ("ledger.spot_price", "inf"), ("trainer.kl_beta", "nan")],
)
def test_numbers_that_no_field_can_hold(tmp_path, key, value):
    with pytest.raises(ConfigError, match=f"command line: bad value for '{key}'"):
        load(tmp_path, flags={key: value})


def test_a_key_that_something_stronger_switched_off_may_stand_in_its_file(tmp_path):
    text = '[planner]\nmode = "fixed"\ncandidates = 48\n'
    assert load(tmp_path, text, {"planner.mode": "off"})[0].planner.mode == "off"
    loaded, _ = load(tmp_path, text, environ={"SPOTLIGHT_PLANNER_MODE": "off"})
    assert loaded.planner.candidates == 48
    with pytest.raises(ConfigError, match=r"command line: 'planner\.candidates' has no effect"):
        load(tmp_path, text, {"planner.mode": "off", "planner.candidates": "40"})
    with pytest.raises(ConfigError, match=r"spotlight\.toml: 'planner\.candidates' has no effect"):
        load(tmp_path, "[planner]\ncandidates = 48\n")


def test_every_key_is_documented_with_its_default():
    text = (DOCS / "configuration.md").read_text()
    rows = dict(re.findall(r"(?m)^\| `([a-z_]+\.[a-z_]+)` \| `(.*?)` \|", text))
    assert list(rows) == config.all_keys()
    default = config.Config()
    for key, shown in rows.items():
        value = config.value_of(default, key)
        assert shown == toml(value), key


def toml(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(v)}" for key, v in value.items()) + "}"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    return "unset" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def test_the_environment_of_this_process_is_the_default(monkeypatch):
    monkeypatch.setitem(os.environ, "SPOTLIGHT_RUN_SEED", "31")
    assert config.load(None)[0].run.seed == 31


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"trainer.train": "full", "trainer.lora_rank": "8"}, "'trainer.lora_rank' has no effect"),
        ({"trainer.objective": "nft", "trainer.clip_range": "1e-4"}, "trainer.objective = 'nft'"),
        ({"trainer.nft_beta": "0.5"}, "no effect with trainer.objective = 'flow_grpo'"),
        ({"trainer.objective": "grpo_guard"}, "choose flow_sde or dance_sde"),
        ({"run.early_stop": "2"}, "run.evaluate_every = 0"),
        ({"trainer.ema_decay": "0.9", "run.trainer_rolls_out": "false"}, "by the trainer alone"),
        ({"trainer.ranks": "2", "trainer.device": "cuda:1"}, "is one device"),
        ({"planner.train_size": "1"}, "at least 2 rollouts of a group must train"),
        ({"planner.train_size": "17"}, "train_size 17 of planner.group_size 16"),
        (
            {"planner.train_size": "8", "trainer.normalise_over": "control"},
            "leaves most of them out",
        ),
    ],
)
def test_an_option_without_effect_is_an_error_and_not_ignored(tmp_path, flags, message):
    """flow_grpo issue 73: a batch size that nothing read."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        load(tmp_path, flags=flags)
