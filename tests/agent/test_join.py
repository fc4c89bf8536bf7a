"""Joining: with the right token it works once and for good; otherwise a sentence and a code."""

import asyncio
import signal
import socket
import stat

import msgspec
import pytest
import zmq.asyncio

from agent.enrol import enrol
from spotlightd.errors import ExitCode
from spotlightd.wire import messages as m
from spotlightd.wire.codec import LINK
from spotlightd.wire.token import Token, make_token, parse_token


def test_joining_again_is_the_same_agent(play, tmp_path):
    """A unit that joins at every start must not use its token up."""

    async def script(daemon):
        state = ("--state-dir", str(tmp_path / "state"))
        keys = []
        for _ in range(2):
            agent = await daemon.start_agent(*state)
            await daemon.until(lambda: daemon.all(m.Hello, len(daemon.heard) - 1), agent)
            keys.append(daemon.key)
            agent.process.send_signal(signal.SIGTERM)
            assert await agent.exit_code() == ExitCode.DRAINED
        assert keys[0] == keys[1]

    play(script)


def test_a_join_keeps_a_key_with_which_it_comes_back(play, tmp_path):
    async def script(daemon):
        state = ("--state-dir", str(tmp_path / "state"))
        agent = await daemon.start_agent("--name=vm-1", "--workers=2", *state)
        hello = (await daemon.until(lambda: daemon.all(m.Hello), agent))[0]
        assert (hello.name, hello.role, hello.workers, hello.held) == ("vm-1", "agent", 2, ())
        await daemon.until(lambda: daemon.all(m.Heartbeat), agent)
        daemon.send(m.Drain(5.0, "enough", run_finished=True))
        assert await daemon.farewell(agent) == ExitCode.OK
        # The token is needed no more.
        daemon.refusal = m.Refused("not_authorised", "the token is used up")
        first, heard = daemon.key, len(daemon.heard)
        agent = await daemon.start_agent("--name=vm-1", *state, command="run")
        await daemon.until(lambda: daemon.all(m.Hello, heard), agent)
        assert daemon.key == first
        agent.process.send_signal(signal.SIGTERM)
        assert await agent.exit_code() == ExitCode.DRAINED
        for secret in (daemon.secret, parse_token(daemon.token).server_key):
            assert secret not in agent.log

    play(script)
    kept = tmp_path / "state/agent.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert msgspec.json.decode(kept.read_bytes())["name"] == "vm-1"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("not_authorised", ExitCode.NOT_AUTHORISED),
        ("version_skew", ExitCode.VERSION_SKEW),
        ("try_again", ExitCode.TRY_AGAIN),
    ],
)
def test_a_refusal_chooses_the_exit_code(play, tmp_path, code, expected):
    async def script(daemon):
        daemon.refusal = m.Refused(code, "the daemon's reason")
        state = ("--state-dir", str(tmp_path / "state"))
        agent = await daemon.start_agent("--connect-timeout=1", *state)
        assert await agent.exit_code() == expected
        assert agent.log.count("the daemon's reason") == 1 and "Traceback" not in agent.log

    play(script)
    assert not (tmp_path / "state/agent.json").exists()


def test_a_daemon_that_asks_for_patience_is_asked_again(play, tmp_path):
    async def script(daemon):
        daemon.refusal = m.Refused("try_again", "the disk is full")
        agent = await daemon.start_agent()
        refused = await daemon.until(lambda: list(daemon.refused_keys), agent)
        daemon.refusal = None
        await daemon.until(lambda: daemon.all(m.Hello), agent)
        assert set(daemon.refused_keys) == {daemon.key}, "the same key, so that one use is taken"
        assert refused and "the disk is full: trying again" in agent.log

    play(script)


def test_a_hello_that_died_with_its_daemon_is_said_again(play):
    async def script(daemon):
        daemon.welcomes = False
        agent = await daemon.start_agent()
        await daemon.until(lambda: daemon.all(m.Hello), agent)
        daemon.welcomes = True
        await daemon.until(lambda: daemon.all(m.Heartbeat), agent)
        assert len(daemon.all(m.Hello)) == 2

    play(script)


def test_a_request_to_join_that_died_with_its_daemon_is_made_again(monkeypatch):
    """Nothing is behind the socket when the first arrives."""
    monkeypatch.setattr("agent.enrol.PATIENCE_S", 0.05)

    async def answer_the_second(router):
        first, second = [await router.recv_multipart() for _ in range(2)]
        assert first == second
        await router.send_multipart([second[0], *LINK.encode(m.Enrolled("agent-1", 7))])

    async def script():
        public, secret = zmq.curve_keypair()
        with zmq.asyncio.Context() as context, context.socket(zmq.ROUTER) as router:
            router.curve_server, router.curve_secretkey, router.linger = True, secret, 0
            port = router.bind_to_random_port("tcp://127.0.0.1")
            token = Token(f"127.0.0.1:{port}", public.decode(), "tok", "secret")
            answering = asyncio.ensure_future(answer_the_second(router))
            identity = await enrol(token, "vm-1", 10.0)
            await answering
        assert identity.link_endpoint == "tcp://127.0.0.1:7"

    asyncio.run(script())


def test_a_refused_session_ends_the_agent(play):
    async def script(daemon):
        daemon.welcomes = False
        agent = await daemon.start_agent()
        await daemon.until(lambda: daemon.all(m.Hello), agent)
        daemon.send(m.Refused("version_skew", "upgrade the agent"))
        assert await agent.exit_code() == ExitCode.VERSION_SKEW
        assert "spotlight-agent: upgrade the agent" in agent.log

    play(script)


def test_nobody_at_the_address(play):
    async def script(daemon):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        token = parse_token(daemon.token)
        endpoint = f"127.0.0.1:{port}"
        daemon.token = make_token(Token(endpoint, token.server_key, "tok", daemon.secret))
        agent = await daemon.start_agent("--connect-timeout=1")
        assert await agent.exit_code() == ExitCode.UNREACHABLE
        assert f"no answer from {endpoint} within 1 s" in agent.log

    play(script)


def test_a_daemon_that_is_not_the_tokens_learns_nothing(play):
    async def script(daemon):
        token = parse_token(daemon.token)
        other = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
        daemon.token = make_token(Token(token.endpoint, other, "tok", daemon.secret))
        agent = await daemon.start_agent("--connect-timeout=1")
        assert await agent.exit_code() == ExitCode.NOT_AUTHORISED
        assert "does not hold the key that this token pins" in agent.log
        assert not daemon.allowed.peers

    play(script)


def test_what_is_no_daemon_is_said_to_be_none(play):
    async def script(daemon):
        async def greet(reader, writer):
            writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
            await reader.read(1)
            writer.close()

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        endpoint = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        token = parse_token(daemon.token)
        daemon.token = make_token(Token(endpoint, token.server_key, "tok", daemon.secret))
        agent = await daemon.start_agent("--connect-timeout=1")
        assert await agent.exit_code() == ExitCode.UNREACHABLE
        assert f"what answers at {endpoint} is no spotlightd" in agent.log
        server.close()

    play(script)


def test_a_key_that_is_not_accepted_any_more_ends_the_agent(play, tmp_path):
    async def script(daemon):
        state = ("--state-dir", str(tmp_path / "state"))
        agent = await daemon.start_agent(*state)
        await daemon.until(lambda: daemon.all(m.Hello), agent)
        agent.process.send_signal(signal.SIGTERM)
        assert await agent.exit_code() == ExitCode.DRAINED
        daemon.allowed.peers.clear()
        agent = await daemon.start_agent(*state, command="run")
        assert await agent.exit_code() == ExitCode.NOT_AUTHORISED
        assert "does not accept this agent's key" in agent.log

    play(script)


def test_a_daemon_that_forgot_the_key_does_not_answer(play):
    async def script(daemon):
        daemon.welcomes = False
        agent = await daemon.start_agent("--connect-timeout=2")
        assert await agent.exit_code() == ExitCode.UNREACHABLE
        assert "join again with a new token" in agent.log

    play(script)


@pytest.mark.parametrize(
    ("command", "arguments", "code", "says"),
    [
        ("run", (), ExitCode.INPUT, "join with a token first"),
        ("join", ("--token-file=/nonexistent",), ExitCode.INPUT, "cannot read the token file"),
        ("join", ("spl1.localhost.hunter2",), ExitCode.INPUT, "this is no join token"),
        ("join", ("a", "--token-file=b"), ExitCode.USAGE, "give the token once"),
        ("join", ("--install", "--workers=x"), ExitCode.USAGE, "--workers"),
        ("join", ("--workers=0",), ExitCode.USAGE, "--workers"),
    ],
)
def test_bad_input_is_one_sentence(play, command, arguments, code, says):
    async def script(daemon):
        agent = await daemon.start_agent(*arguments, command=command)
        assert await agent.exit_code() == code
        assert says in agent.log and len(agent.log.splitlines()) == 1
        assert "hunter2" not in agent.log

    play(script)
