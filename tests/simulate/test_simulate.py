"""The simulator: same seed, same history; bursts as in the trace; assumptions are checked."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from spotlightd.commands import run_app
from spotlightd.config import load
from spotlightd.dit.degrees import Curve
from spotlightd.errors import InputError
from spotlightd.simulate.assumptions import load_assumptions
from spotlightd.simulate.clock import Clock
from spotlightd.simulate.command import configure, simulate
from spotlightd.simulate.durations import Durations
from spotlightd.simulate.learning import Learner
from spotlightd.simulate.rewards import Fidelity
from spotlightd.simulate.run import Simulation
from spotlightd.simulate.traces import load_trace, seat_changes
from spotlightd.simulate.transfers import arrival_s
from spotlightd.simulate.variants import VARIANTS, find_variant
from spotlightd.simulate.vm import Pace, VirtualVm

CONFIG = Path(__file__).parents[2] / "configs/qwen-image-ocr.toml"
SMALL = {
    "run.evaluate_every": "0",
    "run.iterations": "14",
    "run.evaluate_prompts": "2",
    "planner.prompts_per_iteration": "4",
}


@pytest.fixture
def trace(tmp_path):
    """Six instances; four go within a minute, while others come one by one."""
    rows = [(0, "add", f"n{i}") for i in range(6)]
    rows += [(700_000 + 15_000 * i, "remove", f"n{i}") for i in range(4)]
    rows += [(800_000 + 60_000 * i, "add", f"m{i}") for i in range(4)]
    rows += [(2_000_000, "remove", "m0")]
    path = tmp_path / "burst.csv"
    path.write_text("".join(f"{at},{kind},{name}\n" for at, kind, name in rows))
    return path


def play(trace, seed=1, variant="spotlight", assumptions=None, **changes):
    return simulate(CONFIG, SMALL | changes, trace, seed, variant, assumptions)


def test_the_same_seed_gives_the_same_history(trace):
    first, second, other = play(trace), play(trace), play(trace, seed=2)
    assert first == second
    assert first.events > 1000 and first.iterations == 14
    assert other.digest != first.digest


def test_what_is_kept_up_is_what_it_stands_for_throughout_a_run(trace):
    variant, given = find_variant("spotlight"), load_assumptions(fleet={"spot_vms": 12})
    config = configure(CONFIG, SMALL, variant)
    simulation, looks = Simulation(config, given, variant, load_trace(trace), 1), set()

    def look(_: float) -> None:
        simulation.daemon.validate()
        exploring = simulation.cycle.explorer.exploration is not None
        looks.add((exploring, len(simulation.cycle.moment.agents)))

    assert simulation.run(look).iterations == 14
    assert len(looks) > 4, "fleets of several sizes, with and without exploration"


def test_every_gpu_second_is_paid_once(trace):
    found = play(trace, variant="spot")
    assert found.spot.useful > 0 and found.spot.idle > 0 and found.spot.boot > 0
    assert found.spot.cost == pytest.approx(found.spot.held / 3600 * 2.66)
    assert found.reserved.held == pytest.approx(4 * found.time_s)


def test_spot_shortens_rollouts_and_exploration_spreads_groups(trace):
    alone, spot = play(trace, variant="reserved"), play(trace, variant="spot")
    whole = play(trace)
    assert alone.spot.held == 0 and spot.rollout_s < alone.rollout_s
    assert spot.explored == 0 < whole.explored
    assert whole.spot.idle_share < spot.spot.idle_share
    assert whole.variance_ratio > spot.variance_ratio


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_every_variant_runs_to_its_end(trace, name):
    found = play(trace, variant=name, **{"run.iterations": "2"})
    assert (found.variant, found.iterations) == (name, 2)
    assert (found.spot.held > 0) == VARIANTS[name].spot


def test_one_assumption_changes_the_outcome(trace, tmp_path):
    dearer = tmp_path / "dear.toml"
    dearer.write_text("[prices]\nspot = { a = 5.32 }\n")
    before, after = play(trace), play(trace, assumptions=dearer)
    assert after.spot.cost == pytest.approx(2 * before.spot.cost)
    assert after.digest == before.digest


@pytest.mark.parametrize(
    "text, said",
    [
        ("[boot]\nbot_s = 3\n", "did you mean 'boot.boot_s'"),
        ("[boot]\nboot_s = -3\n", "boot_s"),
        ("[boots]\n", "unknown key 'boots'"),
        ("[tasks.ocr]\ntarget = 0.1\n", "start < target"),
    ],
)
def test_assumptions_that_cannot_be_used_are_refused(tmp_path, text, said):
    path = tmp_path / "given.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        load_assumptions(path)


def test_seats_follow_instances_and_go_in_bursts(trace):
    read = load_trace(trace)
    assert read.peak == 6
    changes = seat_changes(read, 4, 1, 20_000)
    up = [False] * 4
    for change in changes:
        assert up[change.seat] != change.up, "a seat changes what it is"
        up[change.seat] = change.up
    lost = sorted(change.at for change in changes if not change.up)
    assert any(later - earlier < 60 for earlier, later in itertools.pairwise(lost))


def test_a_file_that_is_no_trace_is_refused(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("hello\n")
    with pytest.raises(InputError, match="is no spot trace"):
        load_trace(path)


def test_durations_give_back_what_was_published():
    given = load_assumptions()
    changes = {"sampler.height": "1024", "sampler.width": "1024"}
    durations = Durations(load(CONFIG, changes, {})[0], given)
    assert durations.step_s == pytest.approx(20.0 / 50)
    square = {"sampler.height": "2048", "sampler.width": "2048"}
    curve = Durations(load(CONFIG, square, {})[0], given).curve(8)
    assert curve.at(4) == pytest.approx(112.5 / 39.6)
    published = Durations(load(CONFIG, {}, {})[0], given)
    rollout_s = 512 * 10 * published.step_s / 4
    assert rollout_s + published.train_s(512, 4) == pytest.approx(360.0)


WHOLE = [-1.0, 1.0] * 8
"""Rewards of a group of 16 as random as their prompt's: variance 16 / 15, unbiased."""


def learner_of(by_variance: float = 0.5, by_share: float = 0.5) -> Learner:
    return Learner(load_assumptions().tasks["ocr"], (by_variance, by_share), 16)


def test_random_groups_take_as_many_iterations_as_assumed():
    learner = learner_of()
    while not learner.reached:
        assert learner.trained([WHOLE], [16 / 15]) == pytest.approx(1.0)
    assert len(learner.levels) - 1 == learner.task.iterations


def test_an_iteration_teaches_more_with_contrast_and_less_with_fewer_rollouts():
    learner = learner_of(by_variance=0.5, by_share=1.0)
    learner.trained([[2 * reward for reward in WHOLE]], [16 / 15])
    assert learner.progress == pytest.approx(2.0)
    learner = learner_of(by_variance=0.5, by_share=1.0)
    learner.trained([[-1.0, 1.0] * 2], [4 / 3])
    assert learner.progress == pytest.approx(4 / 16)


def test_training_on_fewer_takes_as_much_less_time(trace):
    whole = play(trace, variant="reserved", **{"planner.train_size": "0"})
    few = play(trace, variant="reserved_subset", **{"planner.train_size": "4"})
    assert few.train_s == pytest.approx(whole.train_s / 4, rel=0.05)
    assert few.rollout_s == pytest.approx(whole.rollout_s, rel=0.05)
    assert few.variance_ratio > 1.5 * whole.variance_ratio


def test_fidelity_falls_with_lag_and_with_fewer_steps():
    fidelity = Fidelity(load_assumptions().fidelity)
    assert fidelity.rho(0, 1.0) > fidelity.rho(1, 1.0) > fidelity.rho(1, 0.5) > 0


class Ears:
    """Where a VM's words go in these tests."""

    def __init__(self):
        self.begun_ids, self.denoised_ids = [], []

    def begun(self, vm, job):
        self.begun_ids.append(job.request.request_id)

    def progress(self, vm, job, step):
        pass

    def denoised(self, vm, job):
        self.denoised_ids.append(job.request.request_id)


def request_of(config, name):
    sampler = msgspec.structs.replace(config.sampler, num_steps=10)
    return SimpleNamespace(request_id=name, kind="explore", sampler=sampler)


@pytest.mark.parametrize("regroup_s, ends_at", [(0.5, 0.3 + 0.5 + 9.7 / 1.9), (120.0, 10.0)])
def test_workers_regroup_where_the_pause_is_worth_it(regroup_s, ends_at):
    clock, ears = Clock(), Ears()
    pace = Pace(1.0, 0.0, 0, Curve.of({1: 1.0, 2: 1.9}), regroup_s)
    vm = VirtualVm(clock, ears, "a", "agent", 2, pace)
    vm.grant(request_of(load(CONFIG, {}, {})[0], "r"), 1, 0, False)
    clock.run(lambda: not ears.denoised_ids, 1000.0)
    assert clock.now == pytest.approx(ends_at)
    assert ears.begun_ids == ["r"]


def test_recovery_is_of_what_was_being_denoised(trace, tmp_path):
    """With notice, another GPU takes it up when it has done its next image, however long the
    phase still is; what only waited on the lost VM counts for nothing.
    """
    given = tmp_path / "given.toml"
    # Rollouts fill nearly all of the time, so that losses meet them.
    given.write_text("[train]\nstep_s = 120.0\n[preemption]\nsilent_share = 0.0\n")
    big = {"sampler.height": "1280", "sampler.width": "1280", "planner.prompts_per_iteration": "16"}
    found = play(trace, variant="spot", assumptions=given, **big)
    image_s = Durations(load(CONFIG, big, {})[0], load_assumptions(given)).step_s * 10
    assert found.recovery_s and max(found.recovery_s) < 3 * image_s


def test_a_lease_that_ran_out_and_comes_back_takes_the_place_of_the_old_one(trace):
    # An image of this size takes longer than a lease, and exploration commits nothing on the way.
    big = {"sampler.height": "1280", "sampler.width": "1280", "fleet.lease_s": "5"}
    found = play(trace, **(big | {"run.iterations": "3"}))
    assert found.iterations == 3 and found.spot.wasted > 0


def test_a_newcomer_fetches_from_peers():
    given = load_assumptions().transfer
    (alone,) = arrival_s(given, given.adapter_gb, 1, 3)
    bound = given.adapter_gb * 8 / given.gbit_s
    assert bound <= alone < 3 * bound


def test_the_command_prints_json(trace, capsys):
    from spotlightd.cli import app

    sets = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    words = ["simulate", str(CONFIG), "--trace", str(trace), "--variant", "fixed", "--json", *sets]
    assert run_app(app, "spotlightd", words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["variant"] == "fixed" and found["iterations"] == 14
