"""Who is in the fleet, and in what condition: a pure function of events and time.

    Hello -> live -> (silence) suspect -> (silence) lost -> (silence) forgotten
             live <- (any message) suspect
             live -> Notice or Drain -> draining -> Goodbye -> gone -> forgotten

A lost agent that speaks again must say Hello again. Identity is the agent's key, never its
hostname: spot images repeat names.
"""

from dataclasses import dataclass, field
from typing import Literal

from spotlightd.fleet.looks import Looks
from spotlightd.wire.messages import Role

State = Literal["live", "suspect", "draining", "lost", "gone"]


@dataclass(slots=True)
class Member:
    agent_id: str
    name: str
    role: Role
    workers: int
    joined_at: float
    last_seen: float
    state: State = "live"
    left_at: float | None = None
    ready_versions: tuple[int, ...] = ()
    chunk_endpoint: str = ""
    zone: str = ""
    protocol: tuple[int, int] = (1, 1)


@dataclass(frozen=True)
class Change:
    """A member's new state, and why."""

    agent_id: str
    state: State | Literal["forgotten"]
    reason: str


@dataclass
class Membership:
    """All members by agent id.

    Invariants (see `validate`): exactly the members in states live, suspect and draining are
    present; `left_at` is set exactly when one is lost or gone; every agent is looked at again no
    later than when its silence would change something.
    """

    suspect_s: float
    lost_s: float
    forget_s: float
    members: dict[str, Member] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set, init=False)
    """Agents whose state may have changed since whoever reads it has cleared it."""
    _looks: Looks = field(default_factory=Looks, init=False)
    """At agents: a sign of life costs nothing here, and is found by the next look."""

    def hello(self, member: Member) -> Change:
        """A process introduces itself, for the first time or again."""
        known = self.members.get(member.agent_id)
        self.members[member.agent_id] = member
        self._moved(member)
        reason = "joined" if known is None else f"said hello again, was {known.state}"
        return Change(member.agent_id, "live", reason)

    def present(self, agent_id: str) -> Member | None:
        """Return the member if it has said Hello and has not left or been lost."""
        member = self.members.get(agent_id)
        return member if member and member.state in ("live", "suspect", "draining") else None

    def may_lease(self, agent_id: str) -> bool:
        member = self.members.get(agent_id)
        return member is not None and member.state == "live"

    def seen(self, agent_id: str, now: float) -> Change | None:
        """Any message counts as a sign of life."""
        member = self.members.get(agent_id)
        if member is None or member.left_at is not None:
            return None
        member.last_seen = now
        if member.state == "suspect":
            member.state = "live"
            self._moved(member)
            return Change(agent_id, "live", "heard again")
        return None

    def drain(self, agent_id: str, reason: str) -> Change | None:
        member = self.present(agent_id)
        if member is None or member.state == "draining":
            return None
        member.state = "draining"
        self._moved(member)
        return Change(agent_id, "draining", reason)

    def leave(self, agent_id: str, reason: str, now: float, lost: bool = False) -> Change | None:
        member = self.present(agent_id)
        if member is None:
            return None
        member.state = "lost" if lost else "gone"
        member.left_at = now
        member.ready_versions = ()
        self._moved(member)
        return Change(agent_id, member.state, reason)

    def forget(self, agent_id: str) -> None:
        """Take a member off the list."""
        del self.members[agent_id]
        self._looks.forget(agent_id)
        self.touched.add(agent_id)

    def tick(self, now: float) -> list[Change]:
        """Apply the passing of time. The trainer is watched as a child process instead."""
        changes: list[Change] = []
        # Collected first: each is looked at once a tick, so that whoever is told that one is lost
        # still finds it here, however long nobody has looked.
        for member in [self.members[agent_id] for agent_id in self._looks.pop(now)]:
            changes += self._age(member, now)
            if member.agent_id in self.members:
                self._look_again(member)
        return changes

    def _moved(self, member: Member) -> None:
        """The member's state is another, and so is when its silence matters."""
        self.touched.add(member.agent_id)
        self._look_again(member)

    def _look_again(self, member: Member) -> None:
        if member.role == "agent":
            self._looks.at(member.agent_id, member.last_seen + self._patience(member))

    def _patience(self, member: Member) -> float:
        """Silence after which something becomes of a member."""
        if member.state in ("lost", "gone"):
            return self.forget_s
        return min(self.suspect_s, self.lost_s) if member.state == "live" else self.lost_s

    def _age(self, member: Member, now: float) -> list[Change]:
        silence = now - member.last_seen
        if member.state in ("lost", "gone"):
            if silence > self.forget_s:
                self.forget(member.agent_id)
                return [Change(member.agent_id, "forgotten", f"absent for {silence:.0f} s")]
            return []
        if silence > self.lost_s:
            change = self.leave(member.agent_id, f"silent for {silence:.1f} s", now, lost=True)
            return [change] if change else []
        if silence > self.suspect_s and member.state == "live":
            member.state = "suspect"
            self._moved(member)
            return [Change(member.agent_id, "suspect", f"silent for {silence:.1f} s")]
        return []

    def validate(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        for agent_id, member in self.members.items():
            assert member.agent_id == agent_id
            assert (member.left_at is not None) == (member.state in ("lost", "gone")), member
            assert member.last_seen >= member.joined_at, member
            if member.role == "agent":
                self._looks.validate(agent_id, member.last_seen + self._patience(member))
