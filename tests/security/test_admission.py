"""Who is refused, and in which words: on real sockets, against the daemon's own link."""

import asyncio
import resource
import time

import pytest
import zmq
import zmq.asyncio

from agent.enrol import Identity
from agent.link import AgentLink
from spotlightd.cli import app
from spotlightd.commands import run_app
from spotlightd.errors import InputError, TryAgainError, UsageError
from spotlightd.fleet.auth import AllowList
from spotlightd.fleet.enrolment import Enrolment, fits
from spotlightd.fleet.gate import Gate
from spotlightd.fleet.keys import new_keys, read_keys, retired, rotated, server_keys, write_keys
from spotlightd.fleet.link import Link
from spotlightd.fleet.membership import Member, Membership
from spotlightd.fleet.prices import Prices
from spotlightd.fleet.terms import RETURN_S, Terms
from spotlightd.limits import raise_file_limit
from spotlightd.wire import messages as m
from spotlightd.wire.codec import LINK
from spotlightd.wire.token import proof_under, secret_key
from tests.fleet.test_link import key_pair, scenario


class Fleet:
    """What the gate asks of the fleet, kept."""

    def __init__(self):
        self.prices = Prices(2.66, {"z": 1.0})
        self.members = Membership(4, 10, 3600)
        self.expelled = []
        self.present = []

    def expel(self, agent_id, key, why, refusal):
        self.expelled.append((agent_id, key, why, refusal.code))

    def keys_present(self):
        return self.present


def test_a_captured_proof_helps_nobody_else(tmp_path):
    async def body(f):
        token, victim = f.token(uses=5), key_pair()
        proof = proof_under(secret_key(token.secret), victim.public)
        answer, _ = await f.enrol(token, proof=proof)
        assert isinstance(answer, m.Refused) and "its secret is not" in answer.reason
        answer, _ = await f.enrol(token, proof=proof, public_key=victim.public)
        assert isinstance(answer, m.Refused) and "not the key of this connection" in answer.reason
        assert f.allowed.peers == {}

    scenario(tmp_path, body)


def test_a_stolen_routing_id_gets_nothing(tmp_path):
    async def body(f):
        names = {}
        sockets = []
        for _ in range(2):
            _, keys = await f.enrol(f.token())
            socket = f._context.socket(zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.ROUTING_ID, b"the same")
            socket.curve_serverkey = f.keys.public.encode()
            socket.curve_publickey = keys.public.encode()
            socket.curve_secretkey = keys.secret.encode()
            socket.connect(f"tcp://127.0.0.1:{f.link.link_port}")
            f._dealers.append(socket)
            sockets.append(socket)
            names[len(names)] = keys.public
            await socket.send_multipart(LINK.encode(m.Goodbye(str(len(names)))))
            if len(names) == 1:
                await f.wait_heard()
        assert await f.link.send(names[0], m.Stop())
        assert await sockets[0].poll(5000), "what is for the first reaches the first"
        assert not await sockets[1].poll(200), "and never the thief"
        assert {key for key, _ in f.heard} <= set(names.values())

    scenario(tmp_path, body)


def test_a_revoked_key_stays_out_even_with_a_good_token_and_after_a_restart(tmp_path):
    async def body(f):
        answer, keys = await f.enrol(f.token())
        fleet = Fleet()
        gate = Gate(f.store, f.allowed, f.enrolment, fleet)
        with pytest.raises(UsageError, match="no agent 'nobody'"):
            gate.revoke("nobody")
        gate.revoke(answer.agent_id)
        assert fleet.expelled == [
            (answer.agent_id, keys.public, "revoked by an operator", "not_authorised")
        ]
        again, _ = await f.enrol(f.token(), keys)
        assert isinstance(again, m.Refused) and "was revoked by an operator" in again.reason
        restarted = AllowList()
        Enrolment(f.store, restarted, lambda: 1)
        assert restarted.peers == {}

    scenario(tmp_path, body)


def test_a_key_that_was_not_heard_for_long_is_refused_and_comes_back_with_a_token(tmp_path):
    async def body(f):
        answer, keys = await f.enrol(f.token())
        fleet = Fleet()
        gate = Gate(f.store, f.allowed, f.enrolment, fleet)
        now = time.time()
        fleet.present = [keys.public]
        gate.tick(now + 80_000)
        fleet.present = []
        gate.tick(now + 160_000)
        assert fleet.expelled == [], "being heard renewed it"
        gate.tick(now + 170_000)
        assert fleet.expelled[0][2] == "its key has expired" and f.allowed.peers == {}
        back, _ = await f.enrol(f.token(), keys)
        assert back == answer, "the same agent, with a new term"

    scenario(tmp_path, body)


def test_terms_give_everybody_time_after_a_start():
    terms = Terms(86400.0)
    terms.resume({"just": 1000.0, "over": 900.0, "long": 80_000.0}, stopped_at=950.0, now=50_000.0)
    assert terms.expires_at == {"just": 50_000.0 + RETURN_S, "long": 80_000.0}
    assert terms.expire(54_000.0) == ["just"]


def test_who_is_there_is_not_forgotten(tmp_path):
    async def body(f):
        fleet = Fleet()
        gate = Gate(f.store, f.allowed, f.enrolment, fleet)
        fleet.members.hello(Member("a", "vm", "agent", 1, 0.0, 0.0))
        with pytest.raises(TryAgainError, match="still there"):
            gate.forget("a")
        fleet.members.leave("a", "gone", 1.0)
        gate.forget("a")
        with pytest.raises(UsageError, match="is known"):
            gate.forget("a")
        gate.set_prices("spot", {"z": 2.0})
        assert (fleet.prices.of("spot", "z"), fleet.prices.of("other", "z")) == (2.0, 1.0)
        assert Prices(2.66, {}).of("spot", "") == 2.66
        other = Fleet()
        Gate(f.store, f.allowed, f.enrolment, other)
        assert other.prices.of("spot", "z") == 2.0, "prices outlive a restart"

    scenario(tmp_path, body)


def test_both_server_keys_are_served_while_one_takes_over(tmp_path):
    async def body(f):
        keys = rotated(new_keys())
        assert keys.previous is not None
        link = Link(keys.pair, f.allowed, keys.previous)
        link.bind("127.0.0.1", 0, 0)
        link.previous.bind("127.0.0.1", 0, 0)
        heard = asyncio.Queue()
        link.start(lambda key, message, frames: heard.put_nowait(key), f.enrolment.enrol)
        context = zmq.asyncio.Context()
        try:
            token, own = f.token(uses=1), key_pair()
            door = f.dealer(own, link.previous.enrol_port, keys.previous.public)
            proof = proof_under(secret_key(token.secret), own.public)
            enrol = m.Enrol((1, m.PROTOCOL_MINOR), token.token_id, own.public, proof, "vm")
            await door.send_multipart(LINK.encode(enrol))
            answer, _ = LINK.decode(await door.recv_multipart())
            assert answer.link_port == link.previous.link_port
            endpoint = f"tcp://127.0.0.1:{answer.link_port}"
            identity = Identity("a", "vm", endpoint, keys.previous.public, own.public, own.secret)
            agent = AgentLink(context, identity)
            agent.start(lambda message, frames: None, lambda: agent.send(m.Goodbye("moved")))
            agent.send(m.Goodbye("old"))
            async with asyncio.timeout(10):
                assert await heard.get() == own.public
                moved = link.newer_key(own.public)
                assert moved == m.ServerKey(keys.public, link.link_port)
                agent.move(
                    Identity("a", "vm", f"tcp://127.0.0.1:{moved.link_port}", moved.server_key,
                             own.public, own.secret)
                )  # fmt: skip
                assert await heard.get() == own.public
            assert link.newer_key(own.public) is None, "it has arrived"
            await agent.close()
        finally:
            context.term()
            await link.close()

    scenario(tmp_path, body)


def test_key_files(tmp_path, monkeypatch, capsys):
    state = tmp_path / "state"
    first = server_keys(state, environ={})
    path = state / "keys/server.key"
    assert path.stat().st_mode & 0o777 == 0o600 and first.secret not in repr(first)
    for words, code in (("rotate", 0), ("rotate", 64), ("show", 0), ("retire", 0), ("retire", 64)):
        assert run_app(app, "spotlightd", ["keys", words, "--file", str(path)]) == code
    out, err = capsys.readouterr()
    assert "previous, still served" in out and "keys retire" in err
    second = read_keys(path)
    assert second.slot == 1 and second.public != first.public and second.previous is None
    assert path.stat().st_mode & 0o777 == 0o600
    assert first.secret not in out and second.secret not in out
    with pytest.raises(UsageError):
        retired(second)
    folder = tmp_path / "credentials"
    folder.mkdir()
    write_keys(folder / "server.key", first)
    assert server_keys(state, {"CREDENTIALS_DIRECTORY": str(folder)}) == first
    (folder / "server.key").write_text('{"public": "a", "secret": "b"}')
    with pytest.raises(InputError, match="restore it from a backup"):
        server_keys(state, {"CREDENTIALS_DIRECTORY": str(folder)})


@pytest.mark.parametrize(
    ("protocol", "served"),
    [((1, 1), True), ((1, 0), True), ((1, 2), False), ((0, 9), False), ((2, 0), False)],
)
def test_one_minor_older_is_served(protocol, served):
    assert (m.PROTOCOL_MAJOR, m.PROTOCOL_MINOR) == (1, 1), "choose the cases anew"
    assert fits(protocol) is served


def test_the_limit_of_open_files_is_raised():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        assert raise_file_limit() > 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
