"""The clock and the fleet as the planner sees them. Pure."""

from spotlightd.fleet.membership import Membership
from spotlightd.fleet.scheduler import Scheduler
from spotlightd.planner.spots import Spot, Spots
from spotlightd.planner.timing import Moment


class SpotView:
    """Keeps up with a scheduler and a membership: each event costs as much as it changed.

    Invariant (see `validate`): agents that neither has touched since the last look are in `_spots`
    as they are.
    """

    def __init__(self, scheduler: Scheduler, members: Membership) -> None:
        self._scheduler, self._members = scheduler, members
        self._spots = Spots()
        scheduler.pullers.touched.update(scheduler.pullers)

    def moment(self, now: float, train_fraction: float) -> Moment:
        """Return the agents that can be given exploration now, and how far the update is."""
        touched = self._scheduler.pullers.touched, self._members.touched
        for agent_id in touched[0] | touched[1]:
            self._spots.put(agent_id, self._spot(agent_id))
        for names in touched:
            names.clear()
        return Moment(now, self._spots, train_fraction)

    def _spot(self, agent_id: str) -> Spot | None:
        puller = self._scheduler.pullers.get(agent_id)
        if puller is None or puller.role != "agent" or not puller.versions:
            return None
        if not self._members.may_lease(agent_id):
            return None
        return Spot(self._members.members[agent_id].workers, puller.credit + len(puller.held))

    def validate(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        self._spots.validate()
        touched = self._scheduler.pullers.touched | self._members.touched
        for agent_id in (self._scheduler.pullers.keys() | self._spots.keys()) - touched:
            assert self._spots.get(agent_id) == self._spot(agent_id), agent_id
