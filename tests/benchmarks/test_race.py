"""The race: the trace sped up, what a run cost by role, pairs, ratios, bounds, the picture.

No race is run here.
"""

import argparse
import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from spotlightd.errors import InputError, UsageError
from spotlightd.simulate.traces import SeatChange
from spotlightd.simulate.variants import VARIANTS

ROOT = Path(__file__).parents[2]
MODULES = ("_report", "_race_figures", "_race_run", "_race_picture", "_race_words", "race")
BEGAN = 1000.0
"""When the runs' daemons were started; the first rollout comes 10 s later."""


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import race

    yield race
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def figures(bench):
    import _race_figures

    return _race_figures


@pytest.fixture
def settings(bench):
    return bench.Settings("p3", 20.0, 0.7, 600.0, 60, 4, 2, 10.0, 1.0, 4)


def account(role, price, joined, left, idle=0.0):
    held = left - joined
    return {
        "name": role, "role": role, "price_per_hour": price, "workers": 1, "joined_at": joined,
        "left_at": left, "useful_s": held - idle, "busy_s": held - idle,
    }  # fmt: skip


def record(settings, variant, seed, seconds, reached=True, vms=()):
    """A run of two evaluations: at 0.5 in the beginning, at 0.9 or 0.6 after `seconds`."""
    first, end = BEGAN + 10, BEGAN + 10 + seconds
    accounts = {"trainer": account("trainer", 10.0, BEGAN, end + 5)}
    accounts |= {f"a{n}": account("agent", 1.0, *times) for n, times in enumerate(vms)}
    return {
        "variant": variant, "seed": seed, "settings": vars(settings), "started": BEGAN,
        "points": [[0, first, 0.5], [8, end, 0.9 if reached else 0.6]],
        "phases": [[0, "rollout", first, 3.0], [0, "train", first + 3, 2.0]],
        "accounts": accounts,
        "cells": [
            {"row": row, "at": BEGAN + 5, "useful": 0.5, "wasted": 0.0, "loading": 0.1, "idle": 0.4}
            for row in ("spot 1", "reserved")
        ],
        "losses": [[first + 1, 0, "silent"]], "iterations": 8, "lost": 0,
    }  # fmt: skip


def test_a_trace_is_sped_up_with_its_notices(figures):
    changes = [SeatChange(0.0, 0, True), SeatChange(600.0, 0, False), SeatChange(800.0, 1, True),
               SeatChange(820.0, 1, False)]  # fmt: skip
    assert figures.compress(changes, 20.0, 1, 30.0, 0.0) == [
        (0.0, 0, "boot"), (28.5, 0, "notice"), (30.0, 0, "gone"),
        # Taken away sooner than a notice is long: noticed as soon as it is there.
        (40.0, 1, "boot"), (40.0, 1, "notice"), (41.0, 1, "gone"),
    ]  # fmt: skip
    silent = figures.compress(changes, 20.0, 1, 30.0, 1.0)
    assert [event.kind for event in silent] == ["boot", "gone", "boot", "gone"]


def test_the_target_lies_on_the_line_between_evaluations(figures):
    points = [(0, 10.0, 0.4), (4, 30.0, 0.5), (8, 50.0, 0.7), (12, 70.0, 0.6)]
    assert figures.crossing(points, 0.6) == (40.0, 6.0, True)
    assert figures.crossing(points, 0.7) == (50.0, 8.0, True)
    assert figures.crossing(points, 0.8) == (70.0, 12.0, False)


def test_a_run_costs_what_each_role_held_until_the_target(figures, settings):
    # The target is half-way: 20 s after the first rollout. The second VM came after that.
    run = record(settings, "spot", 1, 40.0, vms=[(BEGAN + 5, BEGAN + 60), (BEGAN + 40, BEGAN + 60)])
    found = figures.result_of(run)
    assert found.reached and (found.iterations, found.seconds) == pytest.approx((4, 20))
    assert found.start_up_s == 10.0
    assert found.reserved_cost == pytest.approx(10.0 * 20 / 3600)
    assert found.spot_cost == pytest.approx(1.0 * 20 / 3600)
    assert found.start_up_cost == pytest.approx((10.0 * 10 + 1.0 * 5) / 3600)
    assert found.cost_if(0.5) == pytest.approx((10.0 * 20 + 0.5 * 20) / 3600)


def test_ratios_are_paired_by_seed(figures, settings):
    runs = {
        ("reserved", 1): record(settings, "reserved", 1, 40.0),
        ("spotlight", 1): record(settings, "spotlight", 1, 20.0, vms=[(BEGAN, BEGAN + 99)]),
        ("reserved", 2): record(settings, "reserved", 2, 90.0),
        ("spotlight", 2): record(settings, "spotlight", 2, 30.0, vms=[(BEGAN, BEGAN + 99)]),
        # Has no partner, and says nothing about a ratio.
        ("spotlight", 3): record(settings, "spotlight", 3, 1.0),
    }
    found = figures.compare(runs)
    assert found["spotlight.sooner"] == pytest.approx(2.5)
    assert (found["spotlight.sooner_min"], found["spotlight.sooner_max"]) == pytest.approx((2, 3))
    assert found["spotlight.cheaper"] == pytest.approx(2.5 / 1.1)
    # Both of two VMs paid as a whole core; and a core at a tenth of the reserved price: as it is.
    assert found["spotlight.cheaper_if_each_vm_is_a_gpu"] == pytest.approx(2.5 / 1.2)
    assert found["spotlight.cheaper_at_90_percent_off"] == pytest.approx(2.5 / 1.1)
    assert found["spotlight.sooner_with_start_up"] == pytest.approx((30 / 20 + 55 / 25) / 2)
    assert found["spotlight.runs"] == 3 and "reserved.sooner" not in found


def test_a_run_that_misses_the_target_counts_with_its_whole_length(figures, settings):
    runs = {
        ("reserved", 1): record(settings, "reserved", 1, 40.0),
        ("spot", 1): record(settings, "spot", 1, 40.0, reached=False),
    }
    found = figures.compare(runs)
    assert (found["spot.not_reached"], found["reserved.not_reached"]) == (1, 0)
    assert found["spot.sooner"] == pytest.approx(20 / 40)


def test_idle_share_is_that_of_spot_vms(figures, settings):
    run = record(settings, "spot", 1, 40.0)
    assert figures.idle_share(run) is None
    run["accounts"]["a"] = account("agent", 1.0, BEGAN, BEGAN + 40, idle=10.0)
    assert figures.idle_share(run) == pytest.approx(0.25)


def test_bounds_follow_from_phases_and_prices(figures):
    found = figures.bounds(3.0, 2.0, 0.25, 2.0, 3.0)
    assert found.sooner == pytest.approx(5 / 3.5)
    assert found.fewer_needed == pytest.approx(2 / (5 / 3.5))
    assert found.cheaper == pytest.approx(1.6) and found.cheaper_free == 2.0
    assert found.sooner_needed == pytest.approx(3.75)


def test_variants_that_two_cores_cannot_play_are_refused(bench):
    playable, refused = [], []
    for name in VARIANTS:
        try:
            playable.append(bench.choose(name).name)
        except UsageError as error:
            refused.append(name)
            assert name in str(error)
    assert refused == ["reserved_3x", "no_groups", "no_peers"]
    assert {"reserved", "spot", "critical_path", "fixed", "spotlight"} <= set(playable)


def test_every_variant_gives_a_configuration_that_loads(bench, settings, tmp_path):
    from _race_run import changes_of

    from spotlightd.config import load
    from spotlightd.demo.config import write_config

    write_config(tmp_path / "c.toml", tmp_path, 1, 60, exploration=True)
    names = ("reserved", "reserved_subset", "spot", "critical_path", "fixed", "spotlight")
    for name in (*names, "no_reserved_rollouts"):
        changes = changes_of(VARIANTS[name], settings, 7)
        config = load(tmp_path / "c.toml", changes, {})[0]
        assert (config.run.seed, config.ledger.spot_price) == (7, 1.0)
        assert config.planner.mode == VARIANTS[name].changes.get("planner.mode", "fixed")
        assert config.planner.train_size == int(VARIANTS[name].changes.get("planner.train_size", 4))
        assert config.run.trainer_rolls_out == VARIANTS[name].reserved_rolls_out


def test_a_kept_run_of_other_settings_is_refused(bench, settings, tmp_path):
    path = tmp_path / "spot-1.json"
    path.write_text(json.dumps(record(settings, "spot", 1, 40.0)))
    assert bench.load(path, settings)["variant"] == "spot"
    with pytest.raises(InputError, match="another target, vms"):
        bench.load(path, bench.Settings(**vars(settings) | {"target": 0.8, "vms": 3}))


def test_the_check_misses_targets_and_says_what_they_would_take(bench, settings, tmp_path, capsys):
    def check(seconds):
        records = [
            record(settings, "reserved", 1, 40.0),
            record(settings, "spotlight", 1, seconds, vms=[(BEGAN, BEGAN + 99)]),
        ]
        args = argparse.Namespace(out=tmp_path, target=0.7, repeats=1, check=True, json=None)
        return bench.report(records, args), capsys.readouterr().out

    code, text = check(30.0)
    assert code == 1 and "3.00 s of rollouts and 2.00 s of training" in text
    assert "missed: spotlight.sooner" in text and "missed: spotlight.cheaper" in text
    assert check(10.0)[0] == 0
    picture = ElementTree.parse(tmp_path / "timeline.svg").getroot()
    words = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert "reserved, seed 1: 0.7 reached after 4.0 iterations" in words
    assert words.count("spot 1") == 2
