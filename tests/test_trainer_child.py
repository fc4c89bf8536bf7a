"""How often a trainer that ends is started again; its processes are exit codes in turn."""

import asyncio
from dataclasses import dataclass, replace

import pytest

from spotlightd.errors import ExitCode
from spotlightd.trainer_child import MAX_RESTARTS, TrainerChild


@dataclass(frozen=True)
class Settings:
    resume_version: int


class ScriptedChild(TrainerChild):
    """Each start takes the next (exit code, versions trained before that)."""

    def __init__(self, *lives):
        self.lives = list(lives)
        self.settings = Settings(0)
        self.ends = []
        super().__init__(None, lambda: self.settings, self.ends.append)

    async def _run_once(self, settings):
        code, trained = self.lives.pop(0)
        self.settings = replace(settings, resume_version=settings.resume_version + trained)
        if not self.lives:
            await self.stop()
        return code


KILLED = -9


def test_one_that_keeps_ending_is_given_up():
    child = ScriptedChild(*[(KILLED, 0)] * 20)
    assert asyncio.run(child.run()) == ExitCode.FAILURE
    assert child.ends == [KILLED] * (MAX_RESTARTS + 1)


def test_one_that_trains_in_between_is_started_again_for_ever():
    child = ScriptedChild(*[(KILLED, 1)] * 20, (0, 0))
    assert asyncio.run(child.run()) == ExitCode.OK
    assert len(child.ends) == 20


@pytest.mark.parametrize("code", [ExitCode.INPUT, ExitCode.USAGE, ExitCode.TRY_AGAIN])
def test_what_no_start_mends_is_not_tried_again(code):
    child = ScriptedChild((code, 0), (0, 0))
    assert asyncio.run(child.run()) == code
    assert child.ends == [code]
