"""`spotlightd check`: the plan of the configurations that ship, and what it refuses."""

import re
from pathlib import Path

import pytest

from spotlightd.cli import app
from spotlightd.commands import run_app
from spotlightd.config import load
from spotlightd.sizing.estimate import GPUS, UTILISATION, estimate
from spotlightd.sizing.shapes import PUBLISHED

CONFIGS = Path(__file__).parents[2] / "configs"
QWEN = CONFIGS / "qwen-image-ocr.toml"


def check(capsys, *arguments):
    code = run_app(app, "spotlightd", ["check", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda p: p.stem)
def test_every_configuration_that_ships_has_a_plan_and_no_warning(capsys, path):
    code, out, err = check(capsys, path)
    assert code == 0, err
    for label in ("GPUs needed", "memory to train", "memory to sample", "time", "cost"):
        assert re.search(rf"(?m)^{label} +\S", out), label
    assert out.count("assumed:") == 10
    assert "warning" not in out and "NOT FIT" not in out


def test_the_plan_follows_prices_and_gpus(capsys):
    def cost(*more):
        out = check(capsys, QWEN, *more)[1]
        return float(re.search(r"(?m)^cost +([\d.]+) USD", out)[1])

    once = cost("--set", "ledger.spot_price=0")
    assert cost("--set", "ledger.spot_price=0", "--set", "ledger.reserved_price=20.94") == (
        pytest.approx(2 * once, rel=1e-3)
    )
    assert cost("--spot-gpus", "0", "--set", "ledger.spot_price=0") > once


def test_training_less_of_each_group_is_advised_where_training_takes_longest(capsys):
    out = check(capsys, QWEN, "--set", "planner.train_size=0")[1]
    found = re.search(r"([\d.]+) s rollouts, ([\d.]+) s training", out)
    rollouts, training = map(float, found.groups())
    assert training > rollouts
    advised = re.search(r"planner.train_size = 4 trains .* 4 of 16: ([\d.]+) s an iteration", out)
    assert float(advised[1]) == pytest.approx(rollouts + training / 4, rel=0.01)
    taken = check(capsys, QWEN, "--set", "planner.train_size=4")[1]
    assert f"{advised[1]} s an iteration" in taken and "of which 4 a prompt train" in taken
    assert "to be faster" not in taken


def test_what_does_not_fit_is_said(capsys):
    code, out, _ = check(capsys, QWEN, "--gpu", "4090")
    assert code == 0 and out.count("DOES NOT FIT") == 2
    assert "warning: it does not fit" in out


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["planner.candidates=64"], "no effect with planner.mode = 'bandit'; did you mean "
         "'planner.max_candidates'"),
        (["planner.mode=fixed", "planner.candidates=64", "planner.max_candidates=64"],
         "did you mean 'planner.candidates'"),
        (["rewards.http_url=http://a/"], "no 'http' reward; add 'http' to rewards.report"),
        (["rewards.weights={ocr = 1.0}"], "set rewards.train = 'mix'"),
        (["rewards.trust_pickle=true"], "has no effect with rewards.http_format = 'json'"),
        (["sampler.num_step=4"], "unknown key 'sampler.num_step'; did you mean "
         "'sampler.num_steps'"),
        (["rewards.report=['pickscore']", "planner.rank_by=ocr"],
         "needs rewards.pickscore_model"),
        (["run.prompts=/no/file.txt"], "cannot read the prompts /no/file.txt"),
        (["run.model=/models/own"], "no model at '/models/own'"),
    ],
)  # fmt: skip
def test_what_cannot_run_or_has_no_effect_is_refused(capsys, changes, says):
    sets = [word for change in changes for word in ("--set", change)]
    code, out, err = check(capsys, QWEN, *sets)
    assert (code, out) == (78, "") and says in err


def test_an_unknown_gpu_gets_the_nearest(capsys):
    code, _, err = check(capsys, QWEN, "--gpu", "h20")
    assert code == 64 and "did you mean 'h200'" in err


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["trainer.kl_beta=0"], "kl_beta is 0"),
        (["trainer.clip_range=1e-5"], "guidance with a clip range of 2e-5 or less collapsed"),
        (["sampler.sde_form=flow_sde", "trainer.clip_range=1e-2"], "is 655 nats"),
    ],
)
def test_settings_that_public_recipes_stumbled_over_are_warned_of(capsys, changes, says):
    sets = [word for change in changes for word in ("--set", change)]
    code, out, _ = check(capsys, QWEN, *sets)
    assert code == 0 and says in out


def planned(size="Qwen-Image", reserved=None, spot=8, **flags):
    config, _ = load(QWEN, flags, {})
    return estimate(config, PUBLISHED[size], GPUS["h200"], reserved, spot)


def test_the_arithmetic_by_hand():
    found = planned(**{"sampler.guidance_scale": "1"})
    length, width = 1024 + 64, 3072
    flops = 2 * 60 * 12 * width**2 * length + 4 * 60 * length**2 * width
    assert found.forward_flops == pytest.approx(flops)
    assert found.rollout_s == pytest.approx(512 * 10 * flops / (9 * 989e12 * UTILISATION))
    assert found.train_s == pytest.approx(128 * 2 * flops * 3.5 / (989e12 * UTILISATION))
    assert planned().forward_flops == pytest.approx(2 * flops)


def test_memory_shrinks_by_sharding_and_recomputing_where_it_must():
    wide = planned(**{"trainer.micro_batch": "16"})
    assert wide.trainer_fits and (wide.recomputed or wide.trainer_gpus > 1)
    narrow = planned()
    assert (narrow.trainer_gpus, narrow.recomputed) == (1, False)
    assert narrow.trainer_bytes > PUBLISHED["Qwen-Image"].transformer * 2
