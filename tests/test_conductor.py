"""The conductor between iteration machine and disk."""

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace

from spotlightd.conductor import Conductor
from spotlightd.config import Config
from spotlightd.fleet.membership import Member, Membership
from spotlightd.fleet.scheduler import Scheduler
from spotlightd.planner.cycle import CycleState
from spotlightd.planner.decisions import Record


class Machine:
    """Answers each event with a figure, and keeps what it saw of the fleet."""

    def __init__(self):
        self.state, self.moment, self.slots = CycleState(), None, []

    def given_up(self, request_id):
        self.slots.append(self.moment.agents.slots)
        return [Record(0, {request_id: 1.0})]


class Disk:
    def __init__(self):
        self.saves, self.figures, self.news = [], [], asyncio.Event()

    def save_cycle(self, state, version, added):
        self.saves.append(Future())
        self.news.set()
        return self.saves[-1]

    def add_metrics(self, iteration, metrics):
        self.figures += metrics
        self.news.set()

    async def until(self, holds):
        while not holds():
            self.news.clear()
            await self.news.wait()


def test_events_that_come_while_the_disk_is_busy_share_a_write():
    async def body():
        disk, scheduler = Disk(), Scheduler(1, 30.0, 4)
        members = Membership(4, 10, 60)
        conductor = Conductor(Config(), disk, [], [])
        fleet = SimpleNamespace(scheduler=scheduler, members=members, train_fraction=0.0)
        conductor.attach(fleet)
        conductor.cycle = Machine()
        running = asyncio.create_task(conductor.run())
        conductor.request_given_up("a")
        await disk.until(lambda: len(disk.saves) == 1)
        for name in "bcd":
            conductor.request_given_up(name)
        members.hello(Member("vm", "vm", "agent", 1, 0.0, 0.0))
        scheduler.join("vm", "agent", (), 0.0)
        scheduler.give("vm", 3, (0,))
        assert disk.figures == [], "nothing is acted on before it is durable"
        disk.saves[0].set_result(None)
        await disk.until(lambda: len(disk.saves) == 2)
        assert disk.figures == ["a"]
        disk.saves[1].set_result(None)
        await disk.until(lambda: len(disk.figures) == 4)
        assert disk.figures == ["a", "b", "c", "d"] and len(disk.saves) == 2
        assert conductor.cycle.slots == [0, 3, 3, 3], "each sees the fleet as it is"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(body(), 10))
