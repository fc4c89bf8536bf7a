"""The other end of the control socket: one blocking call per request.

Each call connects anew, so a client outlives restarts of the daemon.
"""

import asyncio
import os
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from yarl import URL

from spotlightd import __version__
from spotlightd.control import api, views
from spotlightd.errors import (
    InputError,
    NotAuthorisedError,
    SpotlightError,
    TryAgainError,
    UnreachableError,
    UsageError,
    VersionSkewError,
)

TIMEOUT_S = 10.0
LONG_S = 600.0
"""More time for what the daemon must first put together."""

A = TypeVar("A")

_ERRORS: dict[int, type[SpotlightError]] = {
    400: UsageError,
    403: NotAuthorisedError,
    404: UsageError,
    409: TryAgainError,
    413: UsageError,
    422: InputError,
    503: TryAgainError,
}


class ControlClient:
    """A daemon, seen from its control socket.

    Every method may raise:
        UnreachableError: nobody answers on the socket.
        NotAuthorisedError: this user may not open the socket, or may only read.
        UsageError: the daemon refuses the request as wrong.
        TryAgainError: a passing condition.
        InputError: a configuration that was sent is not what it must be.
        VersionSkewError: what came back is no answer that this version knows.
    """

    def __init__(self, socket: Path, timeout_s: float = TIMEOUT_S) -> None:
        self.socket = socket
        self._timeout_s = timeout_s

    def status(self) -> api.Status:
        return self._get("/v1/status", api.Status)

    def agents(self) -> list[api.AgentRow]:
        return self._get("/v1/agents", list[api.AgentRow])

    def runs(self) -> list[api.RunRow]:
        return self._get("/v1/runs", list[api.RunRow])

    def plan(self) -> api.PlanView:
        return self._get("/v1/plan", api.PlanView)

    def weights(self) -> views.WeightsView:
        return self._get("/v1/weights", views.WeightsView)

    def config(self) -> list[views.ConfigRow]:
        return self._get("/v1/config", list[views.ConfigRow])

    def ledger(self, points: int = 200) -> views.LedgerView:
        return self._get(f"/v1/ledger?points={points}", views.LedgerView)

    def alarms(self) -> list[views.Alarm]:
        return self._get("/v1/alarms", list[views.Alarm])

    def samples(self, **wanted: str | int | None) -> views.SamplePage:
        """Return a page; `wanted` has the query's names, None for what is left out."""
        query = urlencode({name: value for name, value in wanted.items() if value is not None})
        return self._get(f"/v1/samples?{query}", views.SamplePage)

    def sample(self, request_id: str) -> views.Sample:
        return self._get(f"/v1/samples/{quote(request_id, safe='')}", views.Sample)

    def image(self, request_id: str) -> bytes:
        """Return a trajectory's picture as PNG."""
        return self._bytes("GET", f"/v1/samples/{quote(request_id, safe='')}/image", b"", 0)

    def timeline(self, seconds: float) -> bytes:
        """Return a trace for Perfetto."""
        return self._bytes("GET", f"/v1/timeline?seconds={seconds:g}", b"", LONG_S)

    def export(self, version: int | None) -> bytes:
        """Return a version for diffusers, as a zip file."""
        query = "" if version is None else f"?version={version}"
        return self._bytes("GET", f"/v1/export{query}", b"", LONG_S)

    def events(self, after: int = 0, wait_s: float = 0, limit: int = 200) -> list[api.EventRow]:
        """Return events with an id above `after`; wait up to `wait_s` for the first one."""
        query = urlencode({"after": after, "wait": wait_s, "limit": limit})
        return self._get(f"/v1/events?{query}", list[api.EventRow], wait_s)

    def create_token(self, ttl_s: float, uses: int, pool: str) -> api.TokenCreated:
        return self._post(
            "/v1/tokens", api.TokenRequest(ttl_s=ttl_s, uses=uses, pool=pool), api.TokenCreated
        )

    def drain(self, agent_id: str, deadline_s: float) -> api.Accepted:
        path = f"/v1/agents/{quote(agent_id, safe='')}/drain"
        return self._post(path, api.DrainRequest(deadline_s=deadline_s), api.Accepted)

    def revoke(self, agent_id: str) -> api.Accepted:
        path = f"/v1/agents/{quote(agent_id, safe='')}/revoke"
        return self._post(path, api.Nothing(), api.Accepted)

    def forget(self, agent_id: str) -> api.Accepted:
        path = f"/v1/agents/{quote(agent_id, safe='')}/forget"
        return self._post(path, api.Nothing(), api.Accepted)

    def submit(self, wanted: api.RunRequest) -> api.Submitted:
        # Reading a long list of prompts takes its time.
        return self._post("/v1/runs", wanted, api.Submitted, LONG_S)

    def set_run(self, verb: Literal["pause", "resume", "stop"]) -> api.Accepted:
        return self._post(f"/v1/run/{verb}", api.Nothing(), api.Accepted)

    def set_prices(self, pool: str, prices: dict[str, float]) -> api.Accepted:
        body = msgspec.json.encode(api.PricesRequest(prices=prices))
        path = f"/v1/pools/{quote(pool, safe='')}/prices"
        return self._call("PUT", path, body, api.Accepted)

    def stop(self) -> api.Accepted:
        return self._post("/v1/stop", api.Nothing(), api.Accepted)

    def _get(self, path: str, kind: type[A], wait_s: float = 0) -> A:
        return self._call("GET", path, b"", kind, wait_s)

    def _post(self, path: str, ask: api.Ask, kind: type[A], wait_s: float = 0) -> A:
        return self._call("POST", path, msgspec.json.encode(ask), kind, wait_s)

    def _call(self, method: str, path: str, body: bytes, kind: type[A], wait_s: float = 0) -> A:
        raw = self._bytes(method, path, body, wait_s)
        try:
            return msgspec.json.decode(raw, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise VersionSkewError(
                f"the daemon on {self.socket} answered {method} {path} with something that this "
                f"version ({__version__}) does not know ({error}): install the daemon's version"
            ) from None

    def _bytes(self, method: str, path: str, body: bytes, wait_s: float) -> bytes:
        try:
            status, raw = asyncio.run(self._exchange(method, path, body, wait_s))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unreachable(error) from None
        if status >= 400:
            raise _failure(status, raw)
        return raw

    async def _exchange(
        self, method: str, path: str, body: bytes, wait_s: float
    ) -> tuple[int, bytes]:
        timeout = aiohttp.ClientTimeout(total=self._timeout_s + wait_s)
        connector = aiohttp.UnixConnector(path=os.fspath(self.socket))
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.request(method, _url(path), data=body or None) as answer,
        ):
            return answer.status, await answer.read()

    def _unreachable(self, error: Exception) -> SpotlightError:
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
        if isinstance(cause, PermissionError):
            return NotAuthorisedError(
                f"this user may not open {self.socket}: join its group (`ls -l` shows it), or "
                f"use sudo"
            )
        reason = "no answer in time" if isinstance(error, TimeoutError) else _reason(cause)
        return UnreachableError(
            f"no daemon answers on {self.socket} ({reason}): start it with `spotlightd run` or "
            f"`systemctl start spotlightd`, or name its socket with --socket"
        )


def _url(path: str) -> URL:
    # Already quoted: an agent id may hold a slash, which must not become part of the path.
    return URL(f"http://spotlight{path}", encoded=True)


def _reason(cause: Exception) -> str:
    return (getattr(cause, "strerror", None) or str(cause) or type(cause).__name__).lower()


def _failure(status: int, raw: bytes) -> SpotlightError:
    try:
        sentence = msgspec.json.decode(raw, type=api.Failure).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        sentence = f"the daemon answered with HTTP status {status}"
    return _ERRORS.get(status, SpotlightError)(sentence)
