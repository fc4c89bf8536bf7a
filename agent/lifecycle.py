"""What the agent is doing, as a pure state machine: events and time in, decisions out.

    joining -> loading -> pulling -> finishing -> draining -> gone
                  '----------'-----------'-----------^  notice, drain by the daemon, or a signal

A finishing agent was advised to move away, with no time set: it asks for no work, completes what it
holds, and leaves. A draining agent commits the state of what is in flight, waits for its last
acknowledgements, and leaves before the deadline in any case.
"""

from dataclasses import dataclass
from typing import Literal

from spotlightd.errors import ExitCode

Phase = Literal["joining", "loading", "pulling", "finishing", "draining", "gone"]

SAFETY_S = 1.0
"""Time kept between leaving and the deadline."""


@dataclass(frozen=True)
class Notice:
    """Why the agent must leave, and when."""

    source: str
    deadline_s: float
    """Seconds left."""
    preempted: bool
    """Whether the agent is taken out of service (exit code 3), or simply ends (0)."""


@dataclass(frozen=True)
class Advice:
    """The VM is at risk and should move; nobody says when it ends."""

    source: str


@dataclass(frozen=True)
class BeginDrain:
    """Stop pulling, flush the workers, tell the daemon."""

    notice: Notice


@dataclass(frozen=True)
class Leave:
    """Hand back what is left, say goodbye and exit."""

    exit_code: ExitCode
    reason: str


@dataclass
class Lifecycle:
    phase: Phase = "joining"
    deadline: float | None = None
    """When to be gone; set exactly while draining."""
    notice: Notice | None = None
    advice: Advice | None = None
    """Set from the first advice on, unless a notice came before."""

    def welcomed(self) -> None:
        if self.phase == "joining":
            self.phase = "loading"

    def ready(self) -> None:
        """A worker can sample."""
        if self.phase == "loading":
            self.phase = "pulling"

    def advised(self, advice: Advice) -> bool:
        """Returns whether the agent finishes from now on; it may be leaving already."""
        if self.phase in ("finishing", "draining", "gone"):
            return False
        self.phase, self.advice = "finishing", advice
        return True

    def noticed(self, notice: Notice, now: float) -> BeginDrain | None:
        """Returns None where the agent leaves already; an earlier deadline still counts."""
        deadline = now + max(notice.deadline_s - SAFETY_S, 0.0)
        if self.phase in ("draining", "gone"):
            self.deadline = None if self.deadline is None else min(self.deadline, deadline)
            return None
        self.phase, self.deadline, self.notice = "draining", deadline, notice
        return BeginDrain(notice)

    def tick(self, now: float, settled: bool, empty: bool) -> Leave | None:
        """Decide whether to leave now.

        Args:
            settled: nothing is on its way, and everything sent is acknowledged.
            empty: no lease is held either.
        """
        if self.phase == "finishing" and settled and empty:
            assert self.advice is not None
            self.phase = "gone"
            return Leave(ExitCode.DRAINED, f"{self.advice.source}: everything is finished")
        if self.phase != "draining":
            return None
        assert self.deadline is not None and self.notice is not None
        if not settled and now < self.deadline:
            return None
        self.phase = "gone"
        code = ExitCode.DRAINED if self.notice.preempted else ExitCode.OK
        how = "everything is committed" if settled else "the deadline is near"
        return Leave(code, f"{self.notice.source}: {how}")
