"""What the daemon notices in reports, beyond taking them to the disk."""

from spotlightd.fleet.ledger import Ledger
from spotlightd.fleet.reports import Reports
from spotlightd.fleet.scheduler import Scheduler
from spotlightd.sections import RewardsSection
from spotlightd.wire.messages import Result


class Port:
    """Keeps what would be said."""

    def __init__(self):
        self.said = []

    def event(self, level, component, text):
        self.said.append((level, component, text))

    def ack(self, *_):
        pass


def test_machines_that_score_unlike_are_named_once():
    port = Port()
    reports = Reports(Scheduler(1, 30.0, 4), Ledger(), None, RewardsSection(), port, None)
    for agent, version in (("a-1", "aa"), ("a-2", "aa"), ("a-3", ""), ("a-4", "bb"), ("a-4", "bb")):
        reports.result(agent, Result("r", 1, {}, "", 1.0, 0, (), version), [])
    ((level, component, text),) = port.said
    assert (level, component) == ("warning", "rewards")
    assert text.startswith("a-4 scores with version bb, a-1 with aa")
