"""What an operator decides about agents: keys that are refused, members that are forgotten."""

from spotlightd.errors import TryAgainError, UsageError
from spotlightd.fleet.auth import AllowList
from spotlightd.fleet.service import TRAINER, FleetService
from spotlightd.store.store import Store


class Dismissal:
    """Acts at once: the allow-list is compared with the key of every message."""

    def __init__(self, store: Store, allowed: AllowList, fleet: FleetService) -> None:
        self._store = store
        self._allowed = allowed
        self._fleet = fleet

    def revoke(self, agent_id: str) -> None:
        """Refuse an agent's key from now on; durable when it returns.

        Raises UsageError for somebody unknown, and for the trainer.
        """
        keys = [key for key, peer in self._allowed.peers.items() if peer.agent_id == agent_id]
        if agent_id == TRAINER or not keys:
            raise UsageError(f"no agent '{agent_id}' holds a key that could be revoked")
        self._store.write(
            lambda connection, _: connection.execute(
                "UPDATE peer SET revoked = 1 WHERE agent_id = ?", (agent_id,)
            )
        ).result()
        for key in keys:
            del self._allowed.peers[key]
        self._fleet.expel(agent_id, "revoked by an operator")

    def forget(self, agent_id: str) -> None:
        """Take an agent that has left off the list of agents; its accounts stay.

        Raises TryAgainError while it is there, UsageError for somebody unknown.
        """
        members = self._fleet.members
        if agent_id not in members.members:
            raise UsageError(f"no agent '{agent_id}' is known")
        if members.present(agent_id) is not None:
            raise TryAgainError(f"{agent_id} is still there: drain or revoke it first")
        del members.members[agent_id]
