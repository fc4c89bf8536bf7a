"""How a newcomer with a token gets its key onto the allow-list."""

import asyncio
import hmac
import secrets
import time
from collections.abc import Callable

from spotlightd.fleet.auth import AllowList, Peer
from spotlightd.store.rows import PeerRow, TokenRow
from spotlightd.store.store import Store
from spotlightd.wire.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR, Enrol, Enrolled, Refused
from spotlightd.wire.token import Token, make_token, proof_under, secret_key


class Enrolment:
    """Creates tokens and answers newcomers. Only a hash of a token's secret is kept."""

    def __init__(self, store: Store, allowed: AllowList, link_port: Callable[[], int]) -> None:
        self._store = store
        self._allowed = allowed
        self._link_port = link_port
        for row in store.peers():
            if not row.revoked:
                allowed.peers[row.public_key] = Peer(row.agent_id, row.name, "agent")

    def create_token(
        self, endpoint: str, server_key: str, ttl_s: float, uses: int, pool: str
    ) -> tuple[str, str, float]:
        """Return (token, its id, expiry in seconds since 1970).

        Args:
            endpoint: `host:port` of the enrolment socket as agents reach it.
            server_key: the daemon's public key (Z85), pinned in the token.
        """
        token_id, secret = secrets.token_hex(6), secrets.token_urlsafe(24)
        expires_at = time.time() + ttl_s
        row = TokenRow(secret_key(secret), uses, expires_at, pool)
        self._store.add_token(token_id, row).result()
        return make_token(Token(endpoint, server_key, token_id, secret)), token_id, expires_at

    async def enrol(self, key: str, message: Enrol) -> Enrolled | Refused:
        """Answer a newcomer that was heard under `key`."""
        major, minor = message.protocol
        if major != PROTOCOL_MAJOR or not PROTOCOL_MINOR - 1 <= minor <= PROTOCOL_MINOR:
            return skew(message.protocol)
        known = self._allowed.peers.get(key)
        if known is not None:
            return Enrolled(known.agent_id, self._link_port())
        reason = self._refusal(key, message)
        if reason:
            return Refused("not_authorised", reason)
        agent_id = f"agent-{secrets.token_hex(4)}"
        row = PeerRow(key, agent_id, message.name, revoked=False)
        if not await asyncio.wrap_future(self._store.enrol(message.token_id, row)):
            return Refused("not_authorised", "the token is used up: create another one")
        self._allowed.peers[key] = Peer(agent_id, message.name, "agent")
        return Enrolled(agent_id, self._link_port())

    def _refusal(self, key: str, message: Enrol) -> str:
        if message.public_key != key:
            return "the key to enrol is not the key of this connection"
        token = self._store.token(message.token_id)
        if token is None:
            return "unknown token: it was made for another daemon, or its state was removed"
        if not hmac.compare_digest(proof_under(token.key, key), message.proof):
            return "wrong token: its secret is not the one that was created"
        if time.time() > token.expires_at:
            return "the token has expired: create another with spotlightctl token create"
        if token.uses_left < 1:
            return "the token is used up: create another with spotlightctl token create"
        return ""


def skew(protocol: tuple[int, int]) -> Refused:
    """Refuse a peer whose protocol does not fit, and say who must upgrade."""
    ours = (PROTOCOL_MAJOR, PROTOCOL_MINOR)
    older = "daemon" if protocol > ours else "agent"
    return Refused(
        "version_skew",
        f"this daemon speaks protocol {ours[0]}.{ours[1]}, the agent {protocol[0]}."
        f"{protocol[1]}: upgrade the {older} with pip install -U spotlight-rl",
    )
