"""Who goes out, and when: revocation on live connections, and keys whose term is over.

ZeroMQ asks for a key only at the handshake. Three things together end a connection's use at once:
the allow-list, which every message is compared with; the fleet, which gives its leases to others;
and new tickets for weights, which every request for a chunk is compared with.
"""

from collections.abc import Mapping

from spotlightd.errors import TryAgainError, UsageError
from spotlightd.fleet.auth import AllowList
from spotlightd.fleet.enrolment import REVOKED, Enrolment
from spotlightd.fleet.service import TRAINER, FleetService
from spotlightd.store.store import Store
from spotlightd.wire.messages import Refused

CHECK_S = 10.0


class Gate:
    """Acts on what operators and time decide about keys."""

    def __init__(
        self, store: Store, allowed: AllowList, enrolment: Enrolment, fleet: FleetService
    ) -> None:
        self._rows = store.admission
        self._allowed = allowed
        self._enrolment = enrolment
        self._fleet = fleet
        self._next_check = 0.0
        fleet.prices.update(self._rows.prices())

    def revoke(self, agent_id: str, by: str = "an operator") -> None:
        """Refuse an agent from now on, its live connection included; durable when it returns.

        Raises UsageError for somebody unknown, and for the trainer.
        """
        keys = [k for k, peer in self._allowed.peers.items() if peer.agent_id == agent_id]
        if agent_id == TRAINER or not keys:
            raise UsageError(f"no agent '{agent_id}' holds a key that could be revoked")
        for key in keys:
            self._enrolment.revoked.add(key)
            self._shut_out(key, f"revoked by {by}", REVOKED)
        self._fleet.renew_tickets()
        for key in keys:
            self._rows.revoke(key).result()

    def forget(self, agent_id: str) -> None:
        """Take an agent that has left off the list of agents; its accounts stay.

        Raises TryAgainError while it is there, UsageError for somebody unknown.
        """
        members = self._fleet.members
        if agent_id not in members.members:
            raise UsageError(f"no agent '{agent_id}' is known")
        if members.present(agent_id) is not None:
            raise TryAgainError(f"{agent_id} is still there: drain or revoke it first")
        members.forget(agent_id)

    def set_prices(self, pool: str, prices: Mapping[str, float]) -> None:
        """Take the prices of a pool's zones: agents that say Hello from now on are billed so."""
        self._rows.set_prices(pool, prices).result()
        self._fleet.prices.update({(pool, zone): price for zone, price in prices.items()})

    def tick(self, now: float) -> None:
        """Renew the keys of who is there, and end those whose term is over.

        Args:
            now: seconds since 1970.
        """
        if now < self._next_check:
            return
        self._next_check = now + min(CHECK_S, self._enrolment.terms.ttl_s / 10)
        terms = self._enrolment.terms
        renewed = terms.heard(self._fleet.keys_present(), now)
        if renewed:
            self._rows.renew(renewed)
        expired = terms.expire(now)
        for key in expired:
            self._shut_out(key, "its key has expired", EXPIRED)
        if expired:
            # Once, however many vanished together.
            self._fleet.renew_tickets()

    def _shut_out(self, key: str, why: str, refusal: str) -> None:
        peer = self._allowed.peers.pop(key, None)
        self._enrolment.terms.end(key)
        if peer is not None:
            self._fleet.expel(peer.agent_id, key, why, Refused("not_authorised", refusal))


EXPIRED = "this agent's key has expired, since it was not heard for long: join with a new token"
