"""A slice of `make fuzz`, and that it would see what it looks for."""

import pytest

from spotlightd.fleet.scheduler import Scheduler
from spotlightd.fleet.service import FleetService
from spotlightd.wire.codec import TypedCodec
from tests.fuzz.__main__ import GROWTH_MB, run
from tests.fuzz.escaped import Escaped

pytestmark = pytest.mark.timeout(180)


def test_mutated_frames_are_refused_and_an_honest_agent_is_served():
    fuzzed = run(seed=7, frames=2000)
    assert fuzzed.frames >= 1900
    assert fuzzed.growth_mb < GROWTH_MB
    refused, reached = fuzzed.outcomes["refused by decode"], fuzzed.outcomes["Progress"]
    assert refused > 200 and reached > 5, "the mutations are too wild, or too tame"
    assert fuzzed.outcomes["newcomers enrolled"] > 0


@pytest.mark.parametrize(
    ("owner", "name"),
    [(FleetService, "_heartbeat"), (Scheduler, "progress"), (TypedCodec, "decode")],
)
def test_a_bug_behind_a_frame_escapes(owner, name, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(owner, name, broken)
    with pytest.raises((Escaped, AssertionError, ZeroDivisionError)):
        run(seed=7, frames=2000)
