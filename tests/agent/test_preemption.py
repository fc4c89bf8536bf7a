"""What counts as a notice that the VM goes away."""

import asyncio

import pytest

from agent.lifecycle import Notice
from agent.preemption import watch_file


def first_notice(path, grace_s=30.0):
    async def run():
        async with asyncio.timeout(5):
            return [notice async for notice in watch_file(path, grace_s)]

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("content", "seconds"),
    [("", 30.0), ("12.5\n", 12.5), ("0", 0.0), ("soon", 30.0), ("-1", 30.0), ("nan", 30.0)],
)
def test_the_file_may_say_how_long(tmp_path, content, seconds):
    path = tmp_path / "preempt"
    path.write_text(content)
    assert first_notice(path) == [Notice("file preempt", seconds, preempted=True)]


def test_what_cannot_be_read_is_still_a_notice(tmp_path):
    (tmp_path / "preempt").mkdir()
    assert first_notice(tmp_path / "preempt")[0].deadline_s == 30.0


def test_a_file_that_appears_later_is_seen(tmp_path):
    path = tmp_path / "preempt"

    async def run():
        watching = asyncio.ensure_future(anext(watch_file(path, 30.0)))
        done, _ = await asyncio.wait({watching}, timeout=0.1)
        assert not done
        path.write_text("9")
        return await asyncio.wait_for(watching, 5)

    assert asyncio.run(run()).deadline_s == 9.0
