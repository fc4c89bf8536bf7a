"""Joining: a key of our own, shown to the daemon whose key the token pins, and kept."""

import asyncio
import logging
import os
import socket
import time
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from agent.diagnose import what_answers
from spotlightd.errors import (
    InputError,
    NotAuthorisedError,
    SpotlightError,
    TryAgainError,
    UnreachableError,
    VersionSkewError,
)
from spotlightd.wire.codec import LINK, WireError
from spotlightd.wire.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR, Enrol, Enrolled, Refused
from spotlightd.wire.token import Token, proof_under, secret_key

logger = logging.getLogger(__name__)


class Identity(msgspec.Struct, frozen=True):
    """What the agent keeps in `agent.json` (mode 0600)."""

    agent_id: str
    name: str
    link_endpoint: str
    server_key: str
    public_key: str
    private_key: str

    def __repr__(self) -> str:
        return f"Identity({self.agent_id!r})"


def load_identity(state_dir: Path) -> Identity:
    """Raises InputError where this agent has not joined yet, or the file is damaged."""
    path = state_dir / "agent.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Identity)
    except FileNotFoundError:
        raise InputError(
            f"no agent has joined in {state_dir}: run spotlight-agent join with a token first"
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{path} is damaged ({error}): remove it and join again") from None


def save_identity(state_dir: Path, identity: Identity) -> None:
    path = state_dir / "agent.json"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(identity))


Keys = tuple[str, str]
"""Public and private CURVE key in Z85."""


PATIENCE_S = 5.0
"""For one answer."""
RETRY_S = 1.0
"""Between two attempts, where the daemon asks for patience: its disk is full, say."""


async def enrol(token: Token, name: str, timeout_s: float, keys: Keys | None = None) -> Identity:
    """Enrol a key: a new one, or one that this daemon may know already, which uses no token up.

    A daemon that says "try again" is asked again until the time is up.

    Raises:
        UnreachableError: nobody answered in time.
        NotAuthorisedError, VersionSkewError, TryAgainError: refused, with the daemon's reason.
    """
    public, private = keys or tuple(key.decode() for key in zmq.curve_keypair())
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout_s
    while True:
        try:
            return await _enrol_once(token, name, deadline - clock(), (public, private))
        except TryAgainError as error:
            if clock() + RETRY_S >= deadline:
                raise
            logger.info("%s: trying again", error)
            await asyncio.sleep(RETRY_S)


async def _enrol_once(token: Token, name: str, timeout_s: float, keys: Keys) -> Identity:
    public, private = keys
    context = zmq.asyncio.Context()
    dealer = context.socket(zmq.DEALER)
    try:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.curve_serverkey = token.server_key.encode()
        dealer.curve_publickey, dealer.curve_secretkey = public.encode(), private.encode()
        accepted = dealer.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        dealer.connect(f"tcp://{token.endpoint}")
        proof = proof_under(secret_key(token.secret), public)
        protocol = (PROTOCOL_MAJOR, PROTOCOL_MINOR)
        message = Enrol(protocol, token.token_id, public, proof, name)
        deadline = time.monotonic() + timeout_s
        answered = False
        while not answered and (left := deadline - time.monotonic()) > 0:
            # A daemon that ended after it had read this never answers it: say it again.
            await dealer.send_multipart(LINK.encode(message))
            answered = bool(await dealer.poll(min(left, PATIENCE_S) * 1000))
        if not answered:
            raise await _silence(token.endpoint, timeout_s, bool(await accepted.poll(0)))
        answer, _ = LINK.decode(await dealer.recv_multipart())
    except WireError as error:
        raise UnreachableError(f"{token.endpoint} is no spotlightd: {error}") from None
    finally:
        dealer.disable_monitor()
        accepted.close(linger=0)
        dealer.close()
        context.term()
    if isinstance(answer, Refused):
        raise refusal(answer)
    if not isinstance(answer, Enrolled):
        raise UnreachableError(f"{token.endpoint} answered with {type(answer).__name__}")
    host = token.endpoint.rpartition(":")[0]
    endpoint = f"tcp://{host}:{answer.link_port}"
    return Identity(answer.agent_id, name, endpoint, token.server_key, public, private)


async def _silence(endpoint: str, timeout_s: float, accepted: bool) -> SpotlightError:
    """Return what it means that nobody answered; `accepted`: our key and theirs were agreed on."""
    host, _, port = endpoint.rpartition(":")
    found = "curve" if accepted else await asyncio.to_thread(what_answers, host, int(port))
    if found == "curve" and not accepted:
        return NotAuthorisedError(
            f"the server at {endpoint} does not hold the key that this token pins: the token was "
            f"made by another daemon, or before its key was replaced; create a new one there with "
            f"spotlightctl token create"
        )
    if found == "other":
        return UnreachableError(f"what answers at {endpoint} is no spotlightd: check the address")
    return UnreachableError(
        f"no answer from {endpoint} within {timeout_s:.3g} s: is spotlightd running there, and "
        f"does a firewall block the port?"
    )


def refusal(answer: Refused) -> SpotlightError:
    """Return the error that a refusal means."""
    match answer.code:
        case "not_authorised":
            return NotAuthorisedError(f"the daemon refuses this agent: {answer.reason}")
        case "version_skew":
            return VersionSkewError(answer.reason)
        case "try_again":
            return TryAgainError(answer.reason)


def default_name() -> str:
    return socket.gethostname() or "agent"


async def join_or_load(
    token: Token | None, state_dir: Path, name: str, timeout_s: float
) -> Identity:
    """Return this agent's identity: enrolled with the token, or kept from an earlier join."""
    if token is None:
        return await asyncio.to_thread(load_identity, state_dir)
    identity = await enrol(token, name, timeout_s, _kept_keys(state_dir, token.server_key))
    await asyncio.to_thread(save_identity, state_dir, identity)
    return identity


def _kept_keys(state_dir: Path, server_key: str) -> Keys | None:
    """Return the keys of an earlier join to the same daemon: a restarted unit is the same agent."""
    try:
        identity = load_identity(state_dir)
    except InputError:
        return None
    if identity.server_key != server_key:
        return None
    return identity.public_key, identity.private_key
