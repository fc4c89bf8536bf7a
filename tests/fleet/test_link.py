"""Real sockets on loopback: who gets in, and what a peer can and cannot do."""

import asyncio
import contextlib
import time

import pytest
import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from spotlightd.errors import InputError, TryAgainError
from spotlightd.fleet.auth import AllowList, KeyPair, Peer, load_or_make_keys
from spotlightd.fleet.enrolment import Enrolment
from spotlightd.fleet.link import Link
from spotlightd.store.store import Store
from spotlightd.wire import messages as m
from spotlightd.wire.codec import LINK
from spotlightd.wire.token import parse_token, proof_under, secret_key

PROTOCOL = (m.PROTOCOL_MAJOR, m.PROTOCOL_MINOR)


def key_pair() -> KeyPair:
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


class Fixture:
    def __init__(self, tmp_path):
        self.keys = key_pair()
        self.allowed = AllowList()
        self.link = Link(self.keys, self.allowed)
        self.link.bind("127.0.0.1", 0, 0)
        self.store = Store(tmp_path / "state")
        self.enrolment = Enrolment(self.store, self.allowed, lambda: self.link.link_port)
        self.heard: list[tuple[str, m.Message]] = []
        self.arrived = asyncio.Event()
        self.link.start(self._handle, self.enrolment.enrol)
        self._context = zmq.asyncio.Context()
        self._dealers: list[zmq.asyncio.Socket] = []

    def _handle(self, key, message, frames):
        self.heard.append((key, message))
        self.arrived.set()

    def token(self, ttl_s: float = 60, uses: int = 1):
        text, _, _ = self.enrolment.create_token(
            f"127.0.0.1:{self.link.enrol_port}", self.keys.public, ttl_s, uses, "pool"
        )
        return parse_token(text)

    def dealer(self, keys: KeyPair, port: int, server_key: str | None = None):
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.curve_serverkey = (server_key or self.keys.public).encode()
        socket.curve_publickey, socket.curve_secretkey = keys.public.encode(), keys.secret.encode()
        socket.connect(f"tcp://127.0.0.1:{port}")
        self._dealers.append(socket)
        return socket

    async def enrol(self, token, keys=None, **changes):
        keys = keys or key_pair()
        fields = {
            "protocol": PROTOCOL,
            "token_id": token.token_id,
            "public_key": keys.public,
            "proof": proof_under(secret_key(token.secret), keys.public),
            "name": "vm",
        } | changes
        socket = self.dealer(keys, self.link.enrol_port, changes.pop("server_key", None))
        await socket.send_multipart(LINK.encode(m.Enrol(**fields)))
        assert await socket.poll(5000)
        answer, _ = LINK.decode(await socket.recv_multipart())
        return answer, keys

    async def wait_heard(self):
        async with asyncio.timeout(5):
            await self.arrived.wait()
        self.arrived.clear()

    async def close(self):
        for socket in self._dealers:
            socket.close(linger=0)
        self._context.term()
        await self.link.close()
        self.store.close()


def scenario(tmp_path, body):
    async def run():
        fixture = Fixture(tmp_path)
        try:
            await body(fixture)
        finally:
            await fixture.close()

    asyncio.run(run())


def test_a_token_lets_a_key_in_and_messages_carry_that_key(tmp_path):
    async def body(f):
        answer, keys = await f.enrol(f.token())
        assert isinstance(answer, m.Enrolled) and answer.link_port == f.link.link_port
        socket = f.dealer(keys, f.link.link_port)
        await socket.send_multipart(LINK.encode(m.Goodbye("test")))
        await f.wait_heard()
        assert f.heard == [(keys.public, m.Goodbye("test"))]
        assert f.link.address(keys.public) == "127.0.0.1"
        assert await f.link.send(keys.public, m.HelloAgain())
        assert LINK.decode(await socket.recv_multipart())[0] == m.HelloAgain()

    scenario(tmp_path, body)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"proof": "0" * 64}, "its secret is not the one"),
        ({"token_id": "nosuch"}, "unknown token"),
        ({"public_key": "0" * 40}, "not the key of this connection"),
        ({"protocol": (m.PROTOCOL_MAJOR + 1, 0)}, "upgrade the daemon with pip install"),
        ({"protocol": (m.PROTOCOL_MAJOR - 1, 9)}, "upgrade the agent with pip install"),
    ],
)
def test_refusals_say_why(tmp_path, changes, reason):
    async def body(f):
        answer, _ = await f.enrol(f.token(), **changes)
        assert isinstance(answer, m.Refused)
        assert reason in answer.reason
        assert f.allowed.peers == {}

    scenario(tmp_path, body)


def test_expired_and_used_up_tokens_are_refused(tmp_path, monkeypatch):
    async def body(f):
        token = f.token(uses=1)
        answer, keys = await f.enrol(token)
        again, _ = await f.enrol(token)
        assert isinstance(again, m.Refused) and "used up" in again.reason
        # The same key asks again, because the answer was lost: no further use is counted.
        repeated, _ = await f.enrol(token, keys)
        assert repeated == answer
        late = f.token(ttl_s=60)
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 61)
        expired, _ = await f.enrol(late)
        assert isinstance(expired, m.Refused) and "has expired" in expired.reason

    scenario(tmp_path, body)


def test_an_unknown_key_is_not_heard_and_a_revoked_one_no_more(tmp_path):
    async def body(f):
        stranger = f.dealer(key_pair(), f.link.link_port)
        await stranger.send_multipart(LINK.encode(m.Goodbye("stranger")))
        _, keys = await f.enrol(f.token())
        friend = f.dealer(keys, f.link.link_port)
        await friend.send_multipart(LINK.encode(m.Goodbye("one")))
        await f.wait_heard()
        # Revoked on the live connection, which ZeroMQ itself would let go on.
        peer = f.allowed.peers.pop(keys.public)
        await friend.send_multipart(LINK.encode(m.Goodbye("two")))
        _, other_keys = await f.enrol(f.token())
        other = f.dealer(other_keys, f.link.link_port)
        await other.send_multipart(LINK.encode(m.Goodbye("three")))
        await f.wait_heard()
        assert [message.reason for _, message in f.heard] == ["one", "three"]
        assert isinstance(peer, Peer)

    scenario(tmp_path, body)


def test_nobody_gets_in_unasked_while_the_daemon_starts(tmp_path):
    """From the first moment that it listens: agents of a daemon that comes back knock at once."""

    async def body(f):
        keys = key_pair()
        link = Link(keys, AllowList())
        link.bind("127.0.0.1", 0, 0)
        try:
            stranger = f.dealer(key_pair(), link.link_port, keys.public)
            outcomes = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            monitor = stranger.get_monitor_socket(outcomes)
            await stranger.send_multipart(LINK.encode(m.Goodbye("let in")))
            async with asyncio.timeout(5):
                event = parse_monitor_message(await monitor.recv_multipart())
            stranger.disable_monitor()
            monitor.close()
            assert event["event"] == zmq.EVENT_HANDSHAKE_FAILED_AUTH
        finally:
            await link.close()

    scenario(tmp_path, body)


def test_a_reader_that_ends_is_no_secret(tmp_path, monkeypatch):
    async def body(f):
        def broken(*_):
            raise RuntimeError("no more")

        monkeypatch.setattr(f.link, "hear", broken)
        _, keys = await f.enrol(f.token())
        await f.dealer(keys, f.link.link_port).send_multipart(LINK.encode(m.Goodbye("test")))
        async with asyncio.timeout(5):
            with pytest.raises(RuntimeError, match="no more"):
                await f.link.failed()

    scenario(tmp_path, body)


def test_garbage_ends_nothing(tmp_path):
    async def body(f):
        _, keys = await f.enrol(f.token())
        socket = f.dealer(keys, f.link.link_port)
        for parts in ([b""], [b"\xc1"], [b"\x81\xa4type\xa4nope"], [b"x" * 100_000, b"y"]):
            await socket.send_multipart(parts)
        await socket.send_multipart(LINK.encode(m.Goodbye("still here")))
        await f.wait_heard()
        assert [message for _, message in f.heard] == [m.Goodbye("still here")]

    scenario(tmp_path, body)


def test_sending_to_nobody_says_so(tmp_path):
    async def body(f):
        assert not await f.link.send("0" * 40, m.HelloAgain())

    scenario(tmp_path, body)


def test_a_taken_port_is_a_sentence(tmp_path):
    async def body(f):
        other = Link(key_pair(), AllowList())
        with pytest.raises(TryAgainError, match="cannot listen on"):
            other.bind("127.0.0.1", f.link.link_port, 0)
        with contextlib.suppress(Exception):
            await other.close()

    scenario(tmp_path, body)


def test_keys_are_kept_private_and_damaged_ones_named(tmp_path):
    path = tmp_path / "keys/server.key"
    keys = load_or_make_keys(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_or_make_keys(path) == keys
    assert keys.secret not in repr(keys)
    path.write_text("{}")
    with pytest.raises(InputError, match="restore it from a backup"):
        load_or_make_keys(path)
