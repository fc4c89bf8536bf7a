"""Rank 0 and the others: whose fault a failure is."""

from types import SimpleNamespace

import pytest
import torch

from spotlightd.dit.models import PromptEmbeds
from spotlightd.errors import SpotlightError
from spotlightd.trainer.crew import Crew
from spotlightd.trainer.ranks import Ranks
from spotlightd.wire.sampling import SamplerSettings

SETTINGS = SamplerSettings((1.0, 0.5, 0.0), "flow_cps", 0.7, (0,), 1.0, 16, 16)


class LostRanks(Ranks):
    """Two, of which the other is gone."""

    def share(self, data=b""):
        raise RuntimeError("Connection closed by peer")


def crew_with(ranks):
    def velocity(*_):
        raise RuntimeError("out of memory")

    policy = SimpleNamespace(model="alone", select=lambda averages: None)
    return Crew(SimpleNamespace(policy=policy, ranks=ranks, velocity=velocity))


def velocity(crew):
    latents, prompts = torch.zeros(1, 2, 3), PromptEmbeds(torch.zeros(1, 2, 3))
    return crew.velocity(latents, torch.ones(1), prompts, SETTINGS)


def test_a_rank_that_is_gone_ends_the_trainer_and_is_no_fault_of_the_sample():
    crew = crew_with(LostRanks(0, 2))
    with pytest.raises(SpotlightError, match="cannot go on together: Connection closed"):
        velocity(crew)
    with pytest.raises(SpotlightError, match="cannot go on together"):
        crew.select(averages=True)


def test_alone_an_error_stays_what_it_is():
    crew = crew_with(Ranks())
    assert crew.model == "alone"
    with pytest.raises(RuntimeError, match="out of memory"):
        velocity(crew)
