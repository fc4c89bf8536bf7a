"""The agent's session with the daemon: Hello until Welcome, on each connection anew.

connect -> Hello -> Welcome ----------------------> work
             ^----- HelloAgain, reconnection -----'
handshake refused -> the agent ends: its key is not known (any more)
ServerKey -> the link moves to the daemon's new key, and says Hello there
"""

import asyncio
import time
from collections.abc import Callable

import msgspec

from agent.enrol import Identity, save_identity
from agent.link import AgentLink
from agent.settings import AgentSettings
from spotlightd import notify
from spotlightd.errors import NotAuthorisedError, UnreachableError
from spotlightd.wire import messages as m

HELLO_PATIENCE_S = 2.0


class Session:
    """What the agent knows of its session. `welcome` is None until the first one."""

    def __init__(
        self,
        settings: AgentSettings,
        identity: Identity,
        link: AgentLink,
        chunk_port: Callable[[], int],
        held: Callable[[], m.Held],
    ) -> None:
        self.welcome: m.Welcome | None = None
        self.identity = identity
        self._settings = settings
        self._link = link
        self._chunk_port = chunk_port
        self._held = held
        self._began = time.monotonic()
        self._hello_at = 0.0

    def hello(self) -> None:
        self._hello_at = time.monotonic()
        settings, up_s = self._settings, time.monotonic() - self._began
        protocol = (m.PROTOCOL_MAJOR, m.PROTOCOL_MINOR)
        self._link.send(
            m.Hello(
                protocol,
                "agent",
                settings.name,
                settings.workers,
                self._chunk_port(),
                self._held(),
                up_s,
                settings.zone,
            )
        )

    def hello_again(self) -> None:
        """The daemon does not know this session. It says so to every message that waited, so one
        Hello answers for a while; after that it may have been lost.
        """
        if time.monotonic() - self._hello_at > HELLO_PATIENCE_S:
            self.hello()

    async def until_welcomed(self) -> None:
        """Say Hello until there is an answer: a daemon that ended after it had one never gives it.

        Raises UnreachableError when the patience is over.
        """
        deadline = time.monotonic() + self._settings.connect_timeout_s
        while (left := deadline - time.monotonic()) > 0:
            await asyncio.sleep(min(left, HELLO_PATIENCE_S))
            if self.welcome is None:
                self.hello_again()
        if self.welcome is None:
            raise UnreachableError(
                f"no answer from {self.identity.link_endpoint} within "
                f"{self._settings.connect_timeout_s:g} s: is spotlightd running there, and does it "
                f"still know this agent? If its state was removed, join again with a new token"
            )

    def welcomed(self, welcome: m.Welcome) -> bool:
        """Keep the terms; return whether it is the first Welcome of this process."""
        first, self.welcome = self.welcome is None, welcome
        if first:
            notify.ready(f"joined as {welcome.agent_id}")
        return first

    def beaten(self, reply: m.HeartbeatReply) -> None:
        """A daemon that has started anew since does not know this session."""
        if self.welcome is not None and reply.epoch != self.welcome.epoch:
            self.hello_again()

    def moved(self, message: m.ServerKey) -> None:
        """The daemon has a new key: pin it, durably, then go there."""
        host = self.identity.link_endpoint.rpartition(":")[0]
        self.identity = msgspec.structs.replace(
            self.identity,
            server_key=message.server_key,
            link_endpoint=f"{host}:{message.link_port}",
        )
        save_identity(self._settings.state_dir, self.identity)
        self._link.move(self.identity)

    def refused(self) -> NotAuthorisedError:
        """Return what it means that the handshake was refused."""
        return NotAuthorisedError(
            f"the daemon at {self.identity.link_endpoint} does not accept this agent's key: it was "
            f"revoked, has expired, or the daemon's state was removed; join with a new token"
        )
