"""HTTP on the control socket, and the same for reading on the dashboard's loopback port.

Whatever goes wrong on the way becomes {"error": sentence}: 400 for what the caller wrote wrongly,
403 for who they are, 404 and 405 for the address, 409 for a passing condition, and 500 only for a
bug in the daemon, which is logged with its trace.
"""

import asyncio
import logging
import os
import socket
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from spotlightd.control import api
from spotlightd.control.handlers import MAX_BODY_BYTES, Handlers, json_response
from spotlightd.control.listen import Listener, open_listener
from spotlightd.control.peer import Peer, group_id, may_write, peer_of
from spotlightd.control.port import Daemon
from spotlightd.control.run_view import Answers, NotFoundError
from spotlightd.errors import (
    InputError,
    NotAuthorisedError,
    SpotlightError,
    TryAgainError,
    UsageError,
)
from spotlightd.web.page import page_routes

log = logging.getLogger(__name__)

_READING = ("GET", "HEAD")
LOOPBACK = "127.0.0.1"
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
SAFE = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""The page loads nothing from anywhere else, and nothing else may embed it."""


class ControlServer:
    """Serves one daemon on one Unix socket, and its dashboard on a port of the loopback.

    Args:
        port: of the dashboard; 0: chosen by the system; None: there is none.
        lent: where to listen, for the time; None: on `path`, which goes at the end.
    """

    def __init__(
        self,
        daemon: Daemon,
        answers: Answers,
        path: Path,
        group: str,
        port: int | None = None,
        lent: Listener | None = None,
    ) -> None:
        self._path = path
        self._group = group
        self._port = port
        self._lent = lent
        self._closing = asyncio.Event()
        self._answers = answers
        self._handlers = Handlers(daemon, answers, self._closing)
        self._listener: Listener | None = None
        self._runners: list[web.AppRunner] = []
        self.dashboard = ""
        """Its address once it is served."""

    async def start(self) -> None:
        """Listen. Raises TryAgainError or InputError when the socket cannot be had."""
        await self._serve(self._app([allow_writers(self._group)], False), self._listening())
        if self._port is not None:
            listening = listen_on_loopback(self._port)
            self.dashboard = f"http://{LOOPBACK}:{listening.getsockname()[1]}/"
            app = self._app([local_only], True)
            app.add_routes(page_routes())
            await self._serve(app, listening)

    def _listening(self) -> socket.socket:
        if self._lent is not None:
            # Closing a copy leaves the socket open: who connects meanwhile waits for the next.
            return self._lent.socket.dup()
        self._listener = open_listener(self._path, self._group, os.environ)
        return self._listener.socket

    async def close(self) -> None:
        """Answer what is being asked, then stop listening and remove the socket."""
        self._closing.set()
        for runner in self._runners:
            await runner.cleanup()
        if self._listener:
            self._listener.close()
        self._answers.close()

    async def _serve(self, app: web.Application, listening: socket.socket) -> None:
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
        await runner.setup()
        await web.SockSite(runner, listening).start()
        self._runners.append(runner)

    def _app(self, guards: list[Middleware], reading_only: bool) -> web.Application:
        app = web.Application(middlewares=[answer_errors, *guards], client_max_size=MAX_BODY_BYTES)
        app.add_routes(self._handlers.routes(reading_only))
        return app


def listen_on_loopback(port: int) -> socket.socket:
    """Return a listening TCP socket; where the port is taken, one that the system chooses."""
    try:
        return socket.create_server((LOOPBACK, port), backlog=128)
    except OSError as error:
        if not port:
            raise InputError(f"cannot listen on {LOOPBACK}: {error.strerror}") from None
        log.warning("port %d is not to be had (%s): another one is chosen", port, error.strerror)
        return socket.create_server((LOOPBACK, 0), backlog=128)


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


@web.middleware
async def local_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer only to names of this machine: a foreign page whose name was made to point here
    (DNS rebinding) sends its own.
    """
    host = request.headers.get("Host", "")
    if host.rpartition(":")[0] not in _LOCAL_NAMES and host not in _LOCAL_NAMES:
        raise NotAuthorisedError("the dashboard answers to localhost and 127.0.0.1 alone")
    response = await handler(request)
    if not response.prepared:
        response.headers.update(SAFE)
    return response


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
        return json_response(api.Failure(error=str(error)), status=_status_of(error))
    except web.HTTPException as error:
        sentence = f"{request.method} {request.path}: {error.reason}"
        answer = json_response(api.Failure(error=sentence), status=error.status)
        if "Allow" in error.headers:
            answer.headers["Allow"] = error.headers["Allow"]
        return answer
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        failure = api.Failure(error="internal error: the daemon's log holds the trace")
        return json_response(failure, status=500)


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
