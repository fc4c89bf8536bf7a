"""How a newcomer with a token gets its key onto the allow-list."""

import asyncio
import hmac
import secrets
import time
from collections.abc import Callable

from spotlightd import __version__
from spotlightd.fleet.auth import AllowList, Peer
from spotlightd.fleet.terms import Terms
from spotlightd.store.rows import PeerRow, TokenRow
from spotlightd.store.store import Store
from spotlightd.wire.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR, Enrol, Enrolled, Refused
from spotlightd.wire.token import Token, make_token, proof_under, secret_key

KEY_TTL_S = 86400.0


class Enrolment:
    """Creates tokens and answers newcomers. Only a hash of a token's secret is kept.

    Invariant: a key is on the allow-list exactly while `terms` holds it (the trainer's apart) and
    it is not in `revoked`.
    """

    def __init__(
        self,
        store: Store,
        allowed: AllowList,
        link_port: Callable[[], int],
        key_ttl_s: float = KEY_TTL_S,
    ) -> None:
        self._rows = store.admission
        self._allowed = allowed
        self._link_port = link_port
        rows = {row.public_key: row for row in self._rows.peers()}
        self.revoked = {key for key, row in rows.items() if row.revoked}
        self.terms = Terms(key_ttl_s)
        run, now = store.run(), time.time()
        valid = {key: row.expires_at for key, row in rows.items() if not row.revoked}
        self.terms.resume(valid, run.updated_at if run else 0.0, now)
        for key in self.terms.expires_at:
            row = rows[key]
            allowed.peers[key] = Peer(row.agent_id, row.name, "agent", row.pool)
        self._agent_ids = {key: row.agent_id for key, row in rows.items()}
        """Of every key that was ever let in: who comes back is the same agent."""

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
        self._rows.add_token(token_id, row).result()
        return make_token(Token(endpoint, server_key, token_id, secret)), token_id, expires_at

    async def enrol(self, key: str, message: Enrol) -> Enrolled | Refused:
        """Answer a newcomer that was heard under `key`."""
        if not fits(message.protocol):
            return skew(message.protocol)
        known = self._allowed.peers.get(key)
        if known is not None:
            return Enrolled(known.agent_id, self._link_port())
        reason = self._refusal(key, message)
        if reason:
            return Refused("not_authorised", reason)
        token = self._rows.token(message.token_id)
        assert token is not None
        agent_id = self._agent_ids.get(key) or f"agent-{secrets.token_hex(4)}"
        expires_at = time.time() + self.terms.ttl_s
        row = PeerRow(key, agent_id, message.name, False, token.pool, expires_at)
        if not await asyncio.wrap_future(self._rows.enrol(message.token_id, row)):
            return Refused("not_authorised", USED_UP)
        if key in self.revoked:
            # Revoked while the row was written.
            return Refused("not_authorised", REVOKED)
        self.terms.begin(key, time.time())
        self._agent_ids[key] = agent_id
        self._allowed.peers[key] = Peer(agent_id, message.name, "agent", token.pool)
        return Enrolled(agent_id, self._link_port())

    def _refusal(self, key: str, message: Enrol) -> str:
        if message.public_key != key:
            return "the key to enrol is not the key of this connection"
        token = self._rows.token(message.token_id)
        if token is None:
            return "unknown token: it was made for another daemon, or its state was removed"
        if not hmac.compare_digest(proof_under(token.key, key), message.proof):
            return "wrong token: its secret is not the one that was created"
        if key in self.revoked:
            return REVOKED
        if time.time() > token.expires_at:
            return "the token has expired: create another with spotlightctl token create"
        if token.uses_left < 1:
            return USED_UP
        return ""


USED_UP = "the token is used up: create another with spotlightctl token create"
REVOKED = (
    "this agent's key was revoked by an operator: remove agent.json from its state directory and "
    "join with a new token, if it is to come back"
)


def fits(protocol: tuple[int, int]) -> bool:
    """Whether a peer's protocol can be served: ours, or one minor older."""
    major, minor = protocol
    return major == PROTOCOL_MAJOR and PROTOCOL_MINOR - 1 <= minor <= PROTOCOL_MINOR


def skew(protocol: tuple[int, int]) -> Refused:
    """Refuse a peer whose protocol does not fit, and say who must upgrade."""
    ours = (PROTOCOL_MAJOR, PROTOCOL_MINOR)
    speaks = f"this daemon ({__version__}) speaks protocol {ours[0]}.{ours[1]}"
    cure = "upgrade the daemon with pip install -U spotlight-rl"
    if protocol < ours:
        cure = f"upgrade the agent with pip install -U 'spotlight-rl=={__version__}'"
    return Refused("version_skew", f"{speaks}, the agent {protocol[0]}.{protocol[1]}: {cure}")
