"""What is kept up with each event is what a look at everything would give."""

import random

import pytest

from spotlightd.planner.allocation import PATIENCE, PromptProgress, next_prompt
from spotlightd.planner.ranking import Ranking
from spotlightd.planner.spots import Spot, Spots
from spotlightd.planner.timing import Times

K, CONTROLS = 8, 2


@pytest.mark.parametrize("seed", range(20))
def test_a_ranking_chooses_as_its_definition_does(seed):
    rng = random.Random(seed)
    prompts = [
        PromptProgress(f"p{i}", rng.choice([6, 8, 10]), rng.choice([0.01, 0.2, 4.0]), PATIENCE * K)
        for i in range(12)
    ]
    most, ranking = 60, Ranking(prompts, K, CONTROLS, 60)
    chosen = 0
    for _ in range(900):
        rho = rng.choice([0.0, 0.4, 0.9])
        wanted, gain = next_prompt(prompts, K, CONTROLS, rho, most)
        found, its_gain = ranking.best(rho)
        assert found is wanted and its_gain == pytest.approx(gain)
        if found is not None and rng.random() < 0.8:
            found.issued += 1
            ranking.issued(found)
            chosen += 1
        one = rng.choice(prompts)
        if one.count < one.issued:
            if rng.random() < 0.1:
                one.issued -= 1
                ranking.issued(one)
            else:
                flat = one.prompt_id in ("p1", "p5", "p7")
                one.score(0.5 if flat else rng.gauss(0, one.prior_variance**0.5))
                ranking.scored(one)
        if rng.random() < 0.01:
            most = rng.choice([K, 30, 60])
            ranking.limit(most)
        ranking.validate()
    assert chosen > 200
    assert ranking.total_variance == pytest.approx(sum(p.variance() for p in prompts))


def test_a_fleets_sums_are_those_of_all_its_agents():
    rng, times, spots = random.Random(3), Times(), Spots()
    crews = {spots.crew: {}}
    for _ in range(600):
        name = f"vm{rng.randrange(9)}"
        spot = Spot(rng.choice([1, 2]), rng.randrange(5)) if rng.random() < 0.7 else None
        spots.put(name, spot)
        times.committed(f"vm{rng.randrange(9)}", 10, rng.uniform(0.5, 2.0))
        spots.validate()
        staffed = {name: spot.workers for name, spot in spots.items()}
        assert crews.setdefault(spots.crew, staffed) == staffed, "another crew, the same number"
        working = sum(times.speed(name) * spot.workers for name, spot in spots.items())
        assert times.rate(spots, 10) * times.cost.predict(10)[0] == pytest.approx(working)
    assert len(crews) > 100


def test_two_who_count_the_same_fleet_do_not_disturb_one_another():
    one, other, spots = Times(), Times(), Spots({"a": Spot(1, 1)})
    for times in (one, other):
        times.committed("a", 10, 1.0)
        assert times.rate(spots, 10) == pytest.approx(1 / times.cost.predict(10)[0])
    spots.put("b", Spot(3, 1))
    assert one.rate(spots, 10) == other.rate(spots, 10) == one.rate(Spots(dict(spots)), 10)
