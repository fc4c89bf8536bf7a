"""HTTP on the control socket: requests in, calls on the daemon, JSON out.

    connection -> who is it (peer.py) -> route -> typed request -> Daemon method -> typed answer

Whatever goes wrong on the way becomes {"error": sentence}: 400 for what the caller wrote wrongly,
403 for who they are, 404 and 405 for the address, 409 for a passing condition, and 500 only for a
bug in the daemon, which is logged with its trace.
"""

import asyncio
import logging
import math
import os
from pathlib import Path
from typing import TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from spotlightd.control import api
from spotlightd.control.listen import Listener, open_listener
from spotlightd.control.peer import Peer, group_id, may_write, peer_of
from spotlightd.errors import NotAuthorisedError, SpotlightError, TryAgainError, UsageError

log = logging.getLogger(__name__)

Ask = TypeVar("Ask", bound=api.Ask)

MAX_BODY_BYTES = 65536
_READING = ("GET", "HEAD")


class NotFoundError(UsageError):
    """The address names something that does not exist."""


class ControlServer:
    """Serves one daemon on one Unix socket."""

    def __init__(self, daemon: api.Daemon, path: Path, group: str) -> None:
        self._daemon = daemon
        self._path = path
        self._group = group
        self._closing = asyncio.Event()
        self._listener: Listener | None = None
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen. Raises TryAgainError or InputError when the socket cannot be had."""
        self._listener = open_listener(self._path, self._group, os.environ)
        runner = web.AppRunner(self._app(), access_log=None, shutdown_timeout=2.0)
        await runner.setup()
        await web.SockSite(runner, self._listener.socket).start()
        self._runner = runner

    async def close(self) -> None:
        """Answer what is being asked, then stop listening and remove the socket."""
        self._closing.set()
        if self._runner:
            await self._runner.cleanup()
        if self._listener:
            self._listener.close()

    def _app(self) -> web.Application:
        app = web.Application(
            middlewares=[answer_errors, allow_writers(self._group)], client_max_size=MAX_BODY_BYTES
        )
        app.add_routes(
            [
                web.get("/healthz", self._health),
                web.get("/v1/status", self._status),
                web.get("/v1/agents", self._agents),
                web.get("/v1/runs", self._runs),
                web.get("/v1/plan", self._plan),
                web.get("/v1/events", self._events),
                web.post("/v1/tokens", self._create_token),
                web.put("/v1/pools/{pool}/prices", self._set_prices),
                web.post("/v1/agents/{agent_id}/drain", self._drain),
                web.post("/v1/stop", self._stop),
            ]
        )
        return app

    async def _health(self, request: web.Request) -> web.Response:
        return _json(api.Health(ok=True))

    async def _status(self, request: web.Request) -> web.Response:
        return _json(self._daemon.status())

    async def _agents(self, request: web.Request) -> web.Response:
        return _json(self._daemon.agents())

    async def _runs(self, request: web.Request) -> web.Response:
        return _json(self._daemon.runs())

    async def _plan(self, request: web.Request) -> web.Response:
        return _json(self._daemon.plan())

    async def _events(self, request: web.Request) -> web.Response:
        after = int(_number(request, "after", 0, 0, 2**53))
        limit = int(_number(request, "limit", 200, 1, api.MAX_EVENTS))
        wait = _number(request, "wait", 0, 0, api.MAX_WAIT_S)
        rows = self._daemon.events(after, limit)
        if not rows and wait:
            rows = (await self._wait_events(after, wait))[:limit]
        return _json(rows)

    async def _wait_events(self, after: int, seconds: float) -> list[api.EventRow]:
        """Wait for events, but not longer than the server lives."""
        waiting = asyncio.ensure_future(self._daemon.wait_events(after, seconds))
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait({waiting, closing}, return_when=asyncio.FIRST_COMPLETED)
            return waiting.result() if waiting.done() else []
        finally:
            waiting.cancel()
            closing.cancel()

    async def _create_token(self, request: web.Request) -> web.Response:
        ask = await _body(request, api.TokenRequest)
        return _json(self._daemon.create_token(ask.ttl_s, ask.uses, ask.pool), status=201)

    async def _set_prices(self, request: web.Request) -> web.Response:
        ask, pool = await _body(request, api.PricesRequest), request.match_info["pool"]
        self._daemon.set_prices(pool, ask.prices)
        return _json(api.Accepted(accepted=f"{len(ask.prices)} prices of pool {pool}"))

    async def _drain(self, request: web.Request) -> web.Response:
        ask = await _body(request, api.DrainRequest)
        agent_id = request.match_info["agent_id"]
        known = [row.agent_id for row in self._daemon.agents()]
        if agent_id not in known:
            raise NotFoundError(
                f"no agent '{agent_id}': the daemon knows {', '.join(known) or 'none'}"
            )
        self._daemon.drain(agent_id, ask.deadline_s)
        return _json(api.Accepted(accepted=f"draining {agent_id}"), status=202)

    async def _stop(self, request: web.Request) -> web.Response:
        await _body(request, api.StopRequest)
        self._daemon.stop()
        return _json(api.Accepted(accepted="stopping"), status=202)


def allow_writers(group: str) -> Middleware:
    """Return the middleware that lets everybody read and only operators write."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method not in _READING:
            peer = _peer(request)
            if not may_write(peer, group_id(group)):
                raise NotAuthorisedError(
                    f"user {peer.uid} may only read: {request.method} {request.path} is for "
                    f"root, the daemon's user and members of group '{group}'"
                )
        return await handler(request)

    return middleware


def _peer(request: web.Request) -> Peer:
    if request.transport is None:
        raise NotAuthorisedError("the connection was closed before it could be checked")
    return peer_of(request.transport.get_extra_info("socket"))


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every exception into a status and a JSON sentence."""
    try:
        return await handler(request)
    except SpotlightError as error:
        return _json(api.Failure(error=str(error)), status=_status_of(error))
    except web.HTTPException as error:
        sentence = f"{request.method} {request.path}: {error.reason}"
        answer = _json(api.Failure(error=sentence), status=error.status)
        if "Allow" in error.headers:
            answer.headers["Allow"] = error.headers["Allow"]
        return answer
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        failure = api.Failure(error="internal error: the daemon's log holds the trace")
        return _json(failure, status=500)


def _status_of(error: SpotlightError) -> int:
    match error:
        case NotFoundError():
            return 404
        case UsageError():
            return 400
        case NotAuthorisedError():
            return 403
        case TryAgainError():
            return 409
        case _:
            return 500


def _json(answer: object, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(answer) + b"\n", status=status, content_type="application/json"
    )


async def _body(request: web.Request, kind: type[Ask]) -> Ask:
    """Read a request's body. Raises UsageError when it is not the JSON object that it must be."""
    raw = await request.read()
    try:
        return msgspec.json.decode(raw or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        fields = ", ".join(kind.__struct_fields__) or "no fields"
        raise UsageError(
            f"{request.path}: the body is not what is expected ({error}); it must be a JSON "
            f"object with {fields}"
        ) from None


def _number(request: web.Request, name: str, default: float, low: float, high: float) -> float:
    text = request.query.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise UsageError(f"{request.path}: {name}={text} is not a number from {low:g} to {high:g}")
    return value
