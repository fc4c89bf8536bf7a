"""What happens to the demo's spot VMs, and when: a pure script over the run's progress.

    vm-a, vm-b join  ->  vm-b gets a preemption notice  ->  vm-c joins  ->  vm-a is killed

Both losses strike during a rollout while the VM holds leases, where they hurt most.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from spotlightd.control.api import AgentRow, Status

FIRST_AGENTS = ("vm-a", "vm-b")
FRESH_AGENT = "vm-c"
OPEN_ROLLOUTS = 24
"""Of the demo's 64 a round, so many must still be open for a loss to strike."""


@dataclass(frozen=True)
class Preempt:
    name: str


@dataclass(frozen=True)
class Join:
    name: str


@dataclass(frozen=True)
class Kill:
    name: str


Step = Preempt | Join | Kill


@dataclass
class Story:
    """Decides the next step from what the control socket says.

    Each step waits for its share of the iterations; losses also wait for the right moment, but
    not beyond the iteration before the last.
    """

    iterations: int
    done: list[Step] = field(default_factory=list)

    def next_step(self, status: Status, agents: Mapping[str, AgentRow]) -> Step | None:
        """Return the step that is due, and count it as taken."""
        steps: list[tuple[float, Step]] = [
            (0.3, Preempt("vm-b")),
            (0.5, Join(FRESH_AGENT)),
            (0.65, Kill("vm-a")),
        ]
        if len(self.done) == len(steps):
            return None
        share, step = steps[len(self.done)]
        if status.iteration < share * self.iterations:
            return None
        if not isinstance(step, Join) and not _at_work(status, agents.get(step.name)):
            return None
        self.done.append(step)
        return step


def _at_work(status: Status, agent: AgentRow | None) -> bool:
    """Whether the agent is in the middle of a rollout that has a good while to go."""
    rollouts = status.requests.get("rollout", {})
    return (
        status.phase == "rollout"
        and rollouts.get("queued", 0) + rollouts.get("leased", 0) >= OPEN_ROLLOUTS
        and agent is not None
        and agent.state == "live"
        and agent.leases > 0
    )
