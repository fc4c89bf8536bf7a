"""The clock and the fleet as the planner sees them. Pure."""

from spotlightd.fleet.membership import Membership
from spotlightd.fleet.scheduler import Scheduler
from spotlightd.planner.timing import Moment, Spot


def moment_of(
    scheduler: Scheduler, members: Membership, now: float, train_fraction: float
) -> Moment:
    """Return the agents that can be given exploration now, and how far the update is."""
    agents = {
        agent_id: Spot(members.members[agent_id].workers, puller.credit + len(puller.held))
        for agent_id, puller in scheduler.pullers.items()
        if puller.role == "agent" and puller.versions and members.may_lease(agent_id)
    }
    return Moment(now, agents, train_fraction)
