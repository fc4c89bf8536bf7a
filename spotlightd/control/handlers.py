"""Answers to each address of the control API: typed request in, calls on the daemon, JSON out.

    connection -> who is it (peer.py) -> endpoint -> typed request -> daemon or run -> answer

What is live comes from the daemon, on its loop. What is long comes from the state directory, in a
thread of its own (`Answers`).
"""

import asyncio
import contextlib
import os
import tempfile
import time
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from spotlightd.control import api
from spotlightd.control.endpoints import ENDPOINTS, Endpoint, read_params
from spotlightd.control.openapi import describe
from spotlightd.control.port import Daemon
from spotlightd.control.run_view import Answers, NotFoundError
from spotlightd.control.views import WeightsView
from spotlightd.errors import InputError, TryAgainError, UsageError

Ask = TypeVar("Ask", bound=api.Ask)
Params = dict[str, Any]

MAX_BODY_BYTES = 65536
MAX_STREAMS = 64
"""Open event streams; each is a browser tab or a reader."""
STREAM_S = 1.0
"""Time between two states on a stream."""
FOREVER = "public, max-age=31536000, immutable"


class Handlers:
    """One method per endpoint, by the names in the table.

    Args:
        closing: set when the server closes; whoever waits is answered then.
    """

    def __init__(self, daemon: Daemon, answers: Answers, closing: asyncio.Event) -> None:
        self._daemon = daemon
        self._answers = answers
        self._closing = closing
        self._streams = 0

    def routes(self, reading_only: bool = False) -> list[web.RouteDef]:
        """Return the routes of all endpoints, or of those that are for every local user."""
        return [
            web.route(endpoint.method, endpoint.path, self._route(endpoint))
            if endpoint.method != "GET"
            else web.get(endpoint.path, self._route(endpoint))
            for endpoint in ENDPOINTS
            if not reading_only or (endpoint.method == "GET" and not endpoint.socket_only)
        ]

    def _route(self, endpoint: Endpoint) -> Handler:
        answer = getattr(self, endpoint.handler)

        async def handle(request: web.Request) -> web.StreamResponse:
            params = read_params(endpoint, request.query, len(list(request.query.items())))
            params |= {name: _text(value) for name, value in request.match_info.items()}
            if endpoint.ask is not None:
                params["ask"] = await read_body(request, endpoint.ask)
            given = await answer(request, params)
            if isinstance(given, web.StreamResponse):
                return given
            return json_response(given, endpoint.status)

        return handle

    # --- live ---------------------------------------------------------------------------------

    async def healthz(self, request: web.Request, params: Params) -> api.Health:
        return api.Health(ok=True)

    async def readyz(self, request: web.Request, params: Params) -> web.Response:
        health = self._daemon.ready()
        return json_response(health, 200 if health.ok else 503)

    async def metrics(self, request: web.Request, params: Params) -> web.Response:
        text = self._daemon.metrics().decode()
        return web.Response(text=text, content_type="text/plain")

    async def openapi(self, request: web.Request, params: Params) -> Any:
        return describe()

    async def status(self, request: web.Request, params: Params) -> api.Status:
        return self._daemon.status()

    async def agents(self, request: web.Request, params: Params) -> Any:
        return self._daemon.agents()

    async def runs(self, request: web.Request, params: Params) -> Any:
        going_on = self._daemon.runs()
        names = {row.name for row in going_on}
        return going_on + [row for row in await self._answers.ended() if row.name not in names]

    async def plan(self, request: web.Request, params: Params) -> api.PlanView:
        return self._daemon.plan()

    async def config(self, request: web.Request, params: Params) -> Any:
        return self._daemon.config()

    async def weights(self, request: web.Request, params: Params) -> WeightsView:
        published = self._daemon.weights()
        adapters = [row.version for row in published if row.kind == "adapter"]
        kept = await self._answers.ask(lambda run: run.kept_versions())
        current = max(adapters) if adapters else None
        return WeightsView(current_version=current, published=published, kept=kept)

    async def events(self, request: web.Request, params: Params) -> Any:
        after, limit, wait = params["after"], params["limit"], params["wait"]
        rows = self._daemon.events(after, limit)
        if not rows and wait:
            rows = (await self._wait_events(after, wait))[:limit]
        return rows

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

    async def stream(self, request: web.Request, params: Params) -> web.StreamResponse:
        """Send the status once a second, and events as they come, until the reader leaves."""
        if self._streams >= MAX_STREAMS:
            raise TryAgainError(f"{MAX_STREAMS} readers follow already: close one, or use `wait`")
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        self._streams += 1
        try:
            await response.prepare(request)
            with contextlib.suppress(ConnectionResetError):
                await self._feed(response, self._stream_start(request, params))
        finally:
            self._streams -= 1
        return response

    def _stream_start(self, request: web.Request, params: Params) -> int:
        # A browser that connects again says which event it saw last.
        seen = request.headers.get("Last-Event-ID", "")
        if seen.isascii() and seen.isdigit() and len(seen) < 16:
            return int(seen)
        after = params["after"]
        return self._daemon.last_event() if after is None else after

    async def _feed(self, response: web.StreamResponse, after: int) -> None:
        due = 0.0
        while not self._closing.is_set():
            now = time.monotonic()
            if now >= due:
                due = now + STREAM_S
                await _say(response, "status", self._daemon.status())
            for row in await self._wait_events(after, due - now):
                after = row.event_id
                await _say(response, "happened", row, after)

    # --- the run ------------------------------------------------------------------------------

    async def samples(self, request: web.Request, params: Params) -> Any:
        return await self._answers.ask(lambda run: run.samples(**params))

    async def sample(self, request: web.Request, params: Params) -> Any:
        return await self._answers.ask(lambda run: run.sample(**params))

    async def image(self, request: web.Request, params: Params) -> web.Response:
        png = await self._answers.ask(lambda run: run.image(**params))
        # A trajectory is a function of its request: its picture never changes.
        return web.Response(body=png, content_type="image/png", headers={"Cache-Control": FOREVER})

    async def grid(self, request: web.Request, params: Params) -> Any:
        return await self._answers.ask(lambda run: run.grid(**params))

    async def metric_names(self, request: web.Request, params: Params) -> Any:
        return await self._answers.ask(lambda run: run.metric_names())

    async def curves(self, request: web.Request, params: Params) -> Any:
        return await self._answers.ask(lambda run: run.curves(**params))

    async def alarms(self, request: web.Request, params: Params) -> Any:
        states = self._daemon.status().agents
        present = sum(states.get(state, 0) for state in ("live", "suspect", "draining"))
        return await self._answers.ask(lambda run: run.alarms(present))

    async def strips(self, request: web.Request, params: Params) -> Any:
        most = params.pop("agents")
        return await self._answers.ask(lambda run: run.strips(most=most, **params))

    async def ledger(self, request: web.Request, params: Params) -> Any:
        return await self._answers.ask(lambda run: run.ledger(**params))

    async def timeline(self, request: web.Request, params: Params) -> web.Response:
        trace = await self._answers.ask(lambda run: run.timeline(**params))
        return web.Response(body=trace, content_type="application/json")

    async def export(self, request: web.Request, params: Params) -> web.Response:
        try:
            packed = await asyncio.to_thread(_packed, self._answers.state_dir, params["version"])
        except InputError as error:
            raise NotFoundError(str(error)) from None
        return web.Response(body=packed, content_type="application/zip")

    # --- writing ------------------------------------------------------------------------------

    async def create_token(self, request: web.Request, params: Params) -> api.TokenCreated:
        ask: api.TokenRequest = params["ask"]
        return self._daemon.create_token(ask.ttl_s, ask.uses, ask.pool)

    async def drain(self, request: web.Request, params: Params) -> api.Accepted:
        agent_id = self._known(params["agent_id"])
        self._daemon.drain(agent_id, params["ask"].deadline_s)
        return api.Accepted(accepted=f"draining {agent_id}")

    async def revoke(self, request: web.Request, params: Params) -> api.Accepted:
        agent_id = self._known(params["agent_id"])
        self._daemon.revoke(agent_id)
        return api.Accepted(accepted=f"revoked {agent_id}")

    async def forget(self, request: web.Request, params: Params) -> api.Accepted:
        agent_id = self._known(params["agent_id"])
        self._daemon.forget(agent_id)
        return api.Accepted(accepted=f"forgot {agent_id}")

    def _known(self, agent_id: str) -> str:
        known = [row.agent_id for row in self._daemon.agents()]
        if agent_id not in known:
            listed = ", ".join(known[:20]) or "none"
            raise NotFoundError(f"no agent '{agent_id}': the daemon knows {listed}")
        return agent_id

    async def set_prices(self, request: web.Request, params: Params) -> api.Accepted:
        prices, pool = params["ask"].prices, params["pool"]
        self._daemon.set_prices(pool, prices)
        return api.Accepted(accepted=f"{len(prices)} prices of pool {pool}")

    async def submit(self, request: web.Request, params: Params) -> api.Submitted | web.Response:
        try:
            return await self._daemon.submit(params["ask"])
        except InputError as error:
            return json_response(api.Failure(error=str(error)), 422)

    async def pause(self, request: web.Request, params: Params) -> api.Accepted:
        self._daemon.set_run("paused")
        return api.Accepted(accepted="paused: what is leased or trains is finished")

    async def resume(self, request: web.Request, params: Params) -> api.Accepted:
        self._daemon.set_run("running")
        return api.Accepted(accepted="running")

    async def stop_run(self, request: web.Request, params: Params) -> api.Accepted:
        self._daemon.set_run("stopped")
        return api.Accepted(accepted="the run ends here: agents are sent home")

    async def stop(self, request: web.Request, params: Params) -> api.Accepted:
        self._daemon.stop()
        return api.Accepted(accepted="stopping")


def _text(value: str) -> str:
    """Return a name from the path. Raises UsageError where it is no text."""
    if not value.isprintable():
        raise UsageError("the path holds what is no printable text")
    return value


async def read_body(request: web.Request, kind: type[Ask]) -> Ask:
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


def json_response(answer: object, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(answer) + b"\n", status=status, content_type="application/json"
    )


async def _say(
    response: web.StreamResponse, name: str, answer: api.Answer, number: int | None = None
) -> None:
    head = f"event: {name}\n" + ("" if number is None else f"id: {number}\n")
    await response.write(head.encode() + b"data: " + msgspec.json.encode(answer) + b"\n\n")


def _packed(state_dir: Path, version: int | None) -> bytes:
    from spotlightd.outputs.export import export

    with tempfile.TemporaryDirectory() as folder:
        written = export(state_dir, Path(folder), version, merged=False)
        packed = BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
            for path in written:
                archive.write(path, os.path.basename(path))
        return packed.getvalue()
