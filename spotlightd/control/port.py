"""What the control server needs of the daemon that it serves."""

from collections.abc import Mapping
from typing import Protocol

from spotlightd.control import api, views
from spotlightd.store.rows import RunIntent


class Daemon(Protocol):
    """What the control socket needs from its owner. All methods are called on the event loop.

    They may raise any SpotlightError; the server turns it into a status and a sentence.
    """

    def status(self) -> api.Status: ...
    def agents(self) -> list[api.AgentRow]: ...
    def runs(self) -> list[api.RunRow]: ...
    def plan(self) -> api.PlanView: ...
    def weights(self) -> tuple[views.WeightsRow, ...]:
        """Return what is served now, newest first."""
        ...

    def config(self) -> list[views.ConfigRow]: ...
    def metrics(self) -> bytes:
        """Return all figures in Prometheus' text format."""
        ...

    def ready(self) -> api.Health:
        """Return whether agents that ask for work can get some."""
        ...

    def create_token(self, ttl_s: float, uses: int, pool: str) -> api.TokenCreated: ...

    def events(self, after_id: int, limit: int) -> list[api.EventRow]:
        """Return the oldest events with an id above `after_id`."""
        ...

    async def wait_events(self, after_id: int, timeout: float) -> list[api.EventRow]:
        """Return as `events` does, but wait up to `timeout` seconds for the first one."""
        ...

    def last_event(self) -> int:
        """Return the newest event's id; 0 before the first."""
        ...

    def drain(self, agent_id: str, deadline_s: float) -> None:
        """Ask an agent (one that `agents` lists) to leave."""
        ...

    def revoke(self, agent_id: str) -> None:
        """Refuse an agent's key from now on, also on the connection that it has."""
        ...

    def forget(self, agent_id: str) -> None:
        """Take an agent that has left off the list. Raises TryAgainError while it is there."""
        ...

    def set_prices(self, pool: str, prices: Mapping[str, float]) -> None:
        """Bill the pool's agents by zone from their next Hello on."""
        ...

    def set_run(self, state: RunIntent) -> None:
        """Pause the run, let it go on, or end it before its last iteration."""
        ...

    async def submit(self, wanted: api.RunRequest) -> api.Submitted:
        """Begin a run that the configuration describes; durable when it returns.

        Raises TryAgainError while another goes on, InputError for a configuration that is none.
        """
        ...

    def stop(self) -> None:
        """Begin a clean stop of the daemon; returns at once."""
        ...
