"""What real training with few of each group says: its configurations, its ratios, and the fit."""

import importlib
import math
import random
from pathlib import Path

import pytest

from spotlightd.config import load

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


def test_every_mode_is_a_configuration_that_loads(bench):
    exploration, staleness = bench("exploration"), bench("staleness")
    for mode in exploration.MODES:
        planner = load(None, exploration.flags_of(mode, 2, 16), {})[0].planner
        name, *sizes = mode.split("/")
        trained, size = [*map(int, sizes), *(0, 16)[len(sizes) :]]
        assert (planner.mode, planner.train_size, planner.group_size) == (name, trained, size)
    assert load(None, staleness.FLAGS, {})[0].planner.mode == "off"


def test_until_lies_on_a_line_between_two_evaluations(bench):
    until = bench("exploration").until
    points = [[0, 0.0, 0.4], [4, 10.0, 0.6], [8, 30.0, 0.5], [12, 40.0, 0.7]]
    assert (until(points, 0.5, 0), until(points, 0.5, 1)) == (pytest.approx(2), pytest.approx(5))
    assert until(points, 0.65, 1) == pytest.approx(37.5)
    with pytest.raises(ValueError, match=r"0\.8 is not reached"):
        until(points, 0.8, 0)


def a_run(mode, trained, ratio, by_variance, by_share, noise):
    """A run whose held-out reward follows the curve, and whose groups spread `ratio` times as much
    as random ones, of variance 0.04 whatever the reward."""
    metrics, held_out, progress = {}, [(0, 0.0, 0.4)], 0.0
    for version in range(16):
        spread = ratio * (1 + 0.1 * noise.gauss(0, 1))
        metrics[str(version)] = {
            "control.ocr": 0.4 + 0.01 * version,
            "planner.variance": 0.04 * 15 / 16,
            "planner.trained": 4.0 * trained,
            "planner.variance_trained": 0.04 * spread * (trained - 1) / trained,
        }
        progress += spread**by_variance * (trained / 16) ** by_share
        if version % 4 == 3:
            held_out.append((version + 1, 0.0, 0.4 + 0.5 * (1 - math.exp(-progress / 16))))
    return {"mode": mode, "seed": 1, "metrics": metrics, "held_out": held_out}


@pytest.mark.parametrize(("by_variance", "by_share"), [(0.4, 0.45), (0.9, 0.2), (0.0, 1.0)])
def test_the_fit_finds_the_exponents_that_made_the_runs(bench, by_variance, by_share):
    learning_curve, noise = bench("learning_curve"), random.Random(1)
    kinds = [("off", 16, 1.0), ("off/8", 8, 1.8), ("off/4", 4, 3.0), ("bandit", 16, 1.7)]
    runs = [a_run(*kind, by_variance, by_share, noise) for kind in kinds]
    learning_curve.measure(runs)
    found = learning_curve.fit(runs)
    assert found.by_variance == pytest.approx(by_variance, abs=0.051)
    assert found.by_share == pytest.approx(by_share, abs=0.051)
    assert (found.tau, found.rise) == (16.0, pytest.approx(0.5, abs=0.02))


def test_without_a_run_of_random_groups_there_is_nothing_to_compare_with(bench):
    run = a_run("bandit", 16, 1.7, 0.4, 0.45, random.Random(1))
    with pytest.raises(SystemExit, match="no run of mode 'off'"):
        bench("learning_curve").measure([run])
