"""The policy of degrees: what it chooses ends a wave as soon as any choice could."""

import itertools
import random

import pytest

from spotlightd.dit.degrees import PUBLIC_CURVE, Curve, Group, plan, single, until


def brute_force(left, workers, curve):
    """Return the least makespan over all sequences of arrangements, by trying every one.

    An arrangement is a partition of the images into groups with a degree each, several images at
    degree 1 only. No symmetry, no bound, no order of images is taken for granted.
    """
    memo = {}

    def partitions(images):
        if not images:
            yield []
            return
        first, rest = images[0], images[1:]
        for size in range(len(rest) + 1):
            for others in itertools.combinations(rest, size):
                remaining = [image for image in rest if image not in others]
                for tail in partitions(remaining):
                    yield [(first, *others), *tail]

    def best(state):
        if not state:
            return 0.0
        if state not in memo:
            memo[state] = float("inf")
            for groups in partitions(list(range(len(state)))):
                choices = [
                    [d for d, _ in curve.speedups if len(group) == 1 or d == 1] for group in groups
                ]
                for degrees in itertools.product(*choices):
                    if sum(degrees) > workers:
                        continue
                    rates = {
                        image: curve.at(degree) / len(group)
                        for group, degree in zip(groups, degrees, strict=True)
                        for image in group
                    }
                    time = min(state[i] / rates[i] for i in rates)
                    after = (round(s - rates[i] * time, 9) for i, s in enumerate(state))
                    rest = best(tuple(sorted(s for s in after if s > 0)))
                    memo[state] = min(memo[state], time + rest)
        return memo[state]

    return best(tuple(sorted(left)))


def follow(left, workers, curve):
    """Return the time of a wave that asks the policy again whenever an image is done."""
    left, now = dict(enumerate(left)), 0.0
    while left:
        names = list(left)
        chosen = plan([left[name] for name in names], workers, curve)
        assert sorted(i for g in chosen.groups for i in g.images) == list(range(len(names)))
        assert sum(group.degree for group in chosen.groups) <= workers
        rates = {
            names[i]: curve.at(g.degree) / len(g.images) for g in chosen.groups for i in g.images
        }
        time = min(left[name] / rate for name, rate in rates.items())
        now += time
        left = {n: s - rates[n] * time for n, s in left.items() if s - rates[n] * time > 1e-9}
    return now


@pytest.mark.parametrize("case", range(25))
def test_it_finds_what_brute_force_finds(case):
    choose = random.Random(case)
    workers = choose.choice([1, 2, 3, 4, 5, 8])
    left = [choose.choice([10, 20, 33, 50]) * 1.0 for _ in range(choose.randint(1, 4))]
    speedups = [1.0, choose.uniform(1.2, 2.0), choose.uniform(2.0, 3.5), choose.uniform(3.0, 6.0)]
    curve = Curve.of(dict(zip((1, 2, 4, 8), speedups, strict=True)))
    best = brute_force(left, workers, curve)
    chosen = plan(left, workers, curve)
    assert chosen.exact
    assert chosen.makespan == pytest.approx(best, rel=0.01)
    assert follow(left, workers, curve) == pytest.approx(best, rel=0.01)


def test_ten_images_on_eight_workers_end_a_third_sooner_than_at_degree_one():
    alone = single([1.0] * 10, 8, PUBLIC_CURVE)
    assert alone == 2.0
    chosen = plan([1.0] * 10, 8, PUBLIC_CURVE)
    assert chosen.makespan < 2 / 3 * alone
    # No schedule of any kind does better than all eight workers at full efficiency. Without sharing
    # workers, brute force finds 1.352: eight images, then two at degree 4.
    assert 10 / 8 <= chosen.makespan <= 1.03 * 10 / 8
    assert follow([1.0] * 10, 8, PUBLIC_CURVE) == pytest.approx(chosen.makespan)


def test_enough_work_for_all_stays_at_degree_one():
    chosen = plan([50.0] * 8, 8, PUBLIC_CURVE)
    assert [group.degree for group in chosen.groups] == [1] * 8


def test_one_image_gets_all_workers_and_a_curve_that_gains_nothing_gets_none():
    assert plan([50.0], 8, PUBLIC_CURVE).groups == (Group(8, (0,)),)
    flat = Curve.of({1: 1.0, 2: 0.9, 4: 0.7})
    assert plan([50.0], 4, flat).groups == (Group(1, (0,)),)


def test_the_longest_image_gets_the_widest_group():
    chosen = plan([10.0, 50.0, 10.0], 4, PUBLIC_CURVE)
    widest = max(chosen.groups, key=lambda group: group.degree)
    assert widest == Group(2, (1,))


def test_models_that_do_not_fit_get_their_least_degree():
    chosen = plan([50.0] * 3, 8, PUBLIC_CURVE, least_degree=4)
    assert {group.degree for group in chosen.groups} == {4}
    assert chosen.makespan == pytest.approx(brute_force([50.0] * 3, 2, Curve.of({1: 1.0})) / 2.84)
    with pytest.raises(ValueError, match="at least one image"):
        plan([50.0], 2, PUBLIC_CURVE, least_degree=4)


def test_a_costly_regroup_is_not_worth_a_small_gain():
    cheap, dear = (plan([50.0] * 10, 8, PUBLIC_CURVE, regroup=cost) for cost in (0.0, 40.0))
    assert cheap.makespan < 65
    assert dear.makespan > 100 - 1e-9, "waits for the two that share, or changes once"


def test_a_wave_left_alone_ends_when_its_slowest_group_does():
    groups = [Group(2, (0,)), Group(1, (1, 2))]
    curve = Curve.of({1: 1.0, 2: 2.0})
    # The two of the batch take 2 x 10 together, then 5 are left of one of them.
    assert until(groups, [40.0, 10.0, 15.0], curve) == 25.0
    assert single([40.0, 10.0, 15.0], 3, curve) == 40.0


def test_curves_that_are_none_are_refused():
    for speedups in ({2: 1.7}, {1: 2.0}, {1: 1.0, 2: float("nan")}, {1: 1.0, 2: 0.0}):
        with pytest.raises(ValueError, match="speedup 1 at degree 1"):
            Curve.of(speedups)
