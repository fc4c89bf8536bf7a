"""Who may connect: CURVE keys against an allow-list, asked by ZeroMQ at every handshake.

ZeroMQ asks only at the handshake, so revoking a key does not end a live connection: `Link`
compares the key of each message with the same allow-list. An exception inside the callback would
silently end pyzmq's authenticator and refuse everybody from then on, hence the guard.
"""

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio
import zmq.auth.asyncio

from spotlightd.errors import InputError
from spotlightd.wire.messages import Role

logger = logging.getLogger(__name__)

AGENTS_DOMAIN = "agents"
ENROL_DOMAIN = "enrol"
WEIGHTS_DOMAIN = "weights"
"""The chunk server's, where weights travel encrypted."""


class KeyPair(msgspec.Struct, frozen=True):
    """CURVE keys in Z85."""

    public: str
    secret: str

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r})"


def load_or_make_keys(path: Path) -> KeyPair:
    """Return the key pair kept in `path` (mode 0600), made on first use.

    Raises InputError when the file is not a key pair.
    """
    if path.exists():
        try:
            return msgspec.json.decode(path.read_bytes(), type=KeyPair)
        except (msgspec.DecodeError, OSError) as error:
            raise InputError(
                f"{path} should hold a CURVE key pair but cannot be read ({error}); restore it "
                f"from a backup, or remove it and enrol every agent again"
            ) from None
    public, secret = zmq.curve_keypair()
    keys = KeyPair(public.decode(), secret.decode())
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(keys))
    return keys


@dataclass(frozen=True)
class Peer:
    """A key that may use the link."""

    agent_id: str
    name: str
    role: Role
    pool: str = "default"
    """Of the token that let it in."""


@dataclass
class AllowList:
    """Public keys (Z85) of the link's peers."""

    peers: dict[str, Peer] = field(default_factory=dict)

    def callback(self, domain: str, key: bytes) -> bool:
        """Answer a handshake: enrolment is open to any key, the link to known ones."""
        try:
            return domain == ENROL_DOMAIN or key.decode("ascii") in self.peers
        except Exception:
            logger.exception("cannot judge a handshake in domain %r", domain)
            return False


class Authenticator:
    """Runs pyzmq's authenticator for all domains of a context."""

    def __init__(self, context: zmq.asyncio.Context, allowed: AllowList) -> None:
        self._zap = zmq.auth.asyncio.AsyncioAuthenticator(context)
        self._allowed = allowed

    def start(self) -> None:
        self._zap.start()
        for domain in (AGENTS_DOMAIN, ENROL_DOMAIN, WEIGHTS_DOMAIN):
            self._zap.configure_curve_callback(domain=domain, credentials_provider=self._allowed)

    def stop(self) -> None:
        self._zap.stop()
