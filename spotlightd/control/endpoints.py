"""Every address of the control API: one table, from which routes, checks and OpenAPI are made."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from spotlightd.control import api, views
from spotlightd.errors import UsageError

Method = Literal["GET", "POST", "PUT"]


@dataclass(frozen=True)
class Param:
    """One query parameter."""

    name: str
    kind: Literal["integer", "number", "string", "boolean"]
    help: str
    default: Any = None
    """What holds where it is left out."""
    low: float = 0
    high: float = 2**53
    """Bounds of a number, or the greatest length of a string."""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Endpoint:
    method: Method
    path: str
    """`{name}` stands for one percent-encoded segment."""
    handler: str
    """Name of the method of `Handlers` that answers."""
    help: str
    answer: Any = None
    """Type of the JSON answer; None where it is of another media type."""
    status: int = 200
    ask: type[api.Ask] | None = None
    """Type of the body; None: there is none."""
    params: tuple[Param, ...] = ()
    media: str = "application/json"
    socket_only: bool = False
    """Not for everybody who can open a port on this machine: left out on the dashboard's."""

    @property
    def names(self) -> list[str]:
        """The names in the path."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]


KINDS = ("explore", "rollout", "evaluate")
_SINCE = Param("since", "number", "Begin, seconds since 1970; left out: the newest there is.")
_SECONDS = Param("seconds", "number", "How long; 0: the whole run.", 3600.0, 0, 10**9)

ENDPOINTS = (
    Endpoint("GET", "/healthz", "healthz", "The daemon's loop turns.", api.Health),
    Endpoint("GET", "/readyz", "readyz", "Work can be given out; 503 while not.", api.Health),
    Endpoint("GET", "/metrics", "metrics", "Figures for Prometheus.", media="text/plain"),
    Endpoint("GET", "/openapi.json", "openapi", "This description.", dict[str, Any]),
    Endpoint("GET", "/v1/status", "status", "How the run is doing.", api.Status),
    Endpoint("GET", "/v1/agents", "agents", "Every agent, and the trainer.", list[api.AgentRow]),
    Endpoint("GET", "/v1/runs", "runs", "The run that goes on, and ended ones.", list[api.RunRow]),
    Endpoint("GET", "/v1/plan", "plan", "What is explored, and why.", api.PlanView),
    Endpoint("GET", "/v1/weights", "weights", "Versions, and who holds them.", views.WeightsView),
    Endpoint("GET", "/v1/config", "config", "Values and their origins.", list[views.ConfigRow],
        socket_only=True),
    Endpoint(
        "GET",
        "/v1/events",
        "events",
        "What happened, oldest first.",
        list[api.EventRow],
        params=(
            Param("after", "integer", "Only events with an id above this one.", 0),
            Param("limit", "integer", "How many at most.", 200, 1, api.MAX_EVENTS),
            Param("wait", "number", "Seconds to wait for the first one.", 0.0, 0, api.MAX_WAIT_S),
        ),
    ),
    Endpoint(
        "GET",
        "/v1/stream",
        "stream",
        "Server-sent events: `status` each second when it changed, `happened` for each event.",
        params=(Param("after", "integer", "Events from above this id; left out: new ones."),),
        media="text/event-stream",
    ),
    Endpoint(
        "GET",
        "/v1/samples",
        "samples",
        "Trajectories, a page at a time.",
        views.SamplePage,
        params=(
            Param("iteration", "integer", "Only of this iteration.", None, 0, 2**31 - 1),
            Param("kind", "string", "Only of this kind.", choices=KINDS),
            Param("prompt", "string", "Only of this prompt id.", None, 1, 200),
            Param("after", "integer", "`next_after` of the page before.", 0),
            Param("limit", "integer", "How many at most.", 50, 1, 500),
        ),
    ),
    Endpoint("GET", "/v1/samples/{request_id}", "sample", "One trajectory.", views.Sample),
    Endpoint(
        "GET",
        "/v1/samples/{request_id}/image",
        "image",
        "Its picture, where it is kept.",
        media="image/png",
    ),
    Endpoint(
        "GET",
        "/v1/grid",
        "grid",
        "Held-out pictures before and after, by prompt and seed.",
        views.Grid,
        params=(
            Param("after", "integer", "Version on the right; default: newest.", None, 0, 2**31),
            Param("offset", "integer", "Prompts to skip.", 0, 0, 10**6),
            Param("limit", "integer", "Prompts at most.", 12, 1, 100),
        ),
    ),
    Endpoint("GET", "/v1/metrics", "metric_names", "Names of all curves.", list[str]),
    Endpoint(
        "GET",
        "/v1/curves",
        "curves",
        "Metrics over iterations, reduced to buckets.",
        views.Curves,
        params=(
            Param("names", "string", "Separated by commas; `*` at the end of one.", "", 0, 2000),
            Param("points", "integer", "Buckets at most.", 300, 1, 5000),
        ),
    ),
    Endpoint("GET", "/v1/alarms", "alarms", "What to look at.", list[views.Alarm]),
    Endpoint(
        "GET",
        "/v1/strips",
        "strips",
        "What each agent's GPUs did, by slices of time.",
        views.Strips,
        params=(
            _SINCE,
            _SECONDS,
            Param("slots", "integer", "Slices.", 120, 1, 2000),
            Param("agents", "integer", "Agents at most.", 50, 1, 1000),
        ),
    ),
    Endpoint(
        "GET",
        "/v1/ledger",
        "ledger",
        "GPU-seconds and money, by agent and over time.",
        views.LedgerView,
        params=(Param("points", "integer", "Points over time.", 200, 2, 5000),),
    ),
    Endpoint(
        "GET",
        "/v1/timeline",
        "timeline",
        "A trace for Perfetto (Chrome's JSON).",
        dict[str, Any],
        params=(
            _SINCE,
            _SECONDS,
            Param("limit", "integer", "Trajectories at most.", 20_000, 1, 200_000),
        ),
    ),
    Endpoint(
        "GET",
        "/v1/export",
        "export",
        "A version for diffusers with its card, as a zip file.",
        params=(Param("version", "integer", "Left out: the newest.", None, 0, 2**31 - 1),),
        media="application/zip",
        socket_only=True,
    ),
    Endpoint(
        "POST",
        "/v1/tokens",
        "create_token",
        "Make a join token.",
        api.TokenCreated,
        201,
        api.TokenRequest,
    ),
    Endpoint(
        "POST",
        "/v1/agents/{agent_id}/drain",
        "drain",
        "Ask an agent to leave.",
        api.Accepted,
        202,
        api.DrainRequest,
    ),
    Endpoint(
        "POST",
        "/v1/agents/{agent_id}/revoke",
        "revoke",
        "Refuse an agent's key at once and for good.",
        api.Accepted,
        200,
        api.Nothing,
    ),
    Endpoint(
        "POST",
        "/v1/agents/{agent_id}/forget",
        "forget",
        "Take an agent that has left off the list.",
        api.Accepted,
        200,
        api.Nothing,
    ),
    Endpoint(
        "PUT",
        "/v1/pools/{pool}/prices",
        "set_prices",
        "Bill a pool's agents by zone, from their next Hello on.",
        api.Accepted,
        200,
        api.PricesRequest,
    ),
    Endpoint(
        "POST",
        "/v1/runs",
        "submit",
        "Begin a run, or go on with one that ended; refused while one goes on.",
        api.Submitted,
        201,
        api.RunRequest,
    ),
    Endpoint(
        "POST",
        "/v1/run/pause",
        "pause",
        "Give out no new work; what is leased or trains is finished.",
        api.Accepted,
        200,
        api.Nothing,
    ),
    Endpoint(
        "POST", "/v1/run/resume", "resume", "Go on.", api.Accepted, 200, api.Nothing
    ),
    Endpoint(
        "POST",
        "/v1/run/stop",
        "stop_run",
        "End the run where it is: agents are sent home.",
        api.Accepted,
        202,
        api.Nothing,
    ),
    Endpoint("POST", "/v1/stop", "stop", "Stop the daemon.", api.Accepted, 202, api.Nothing),
)  # fmt: skip


def read_params(endpoint: Endpoint, query: Mapping[str, str], pairs: int) -> dict[str, Any]:
    """Return a value for each parameter of an endpoint.

    Args:
        pairs: how many the query holds; more than it has names means that one is repeated.

    Raises UsageError for an unknown, repeated or impossible one.
    """
    known = {param.name: param for param in endpoint.params}
    for name in query:
        if name not in known:
            shown = name if name.isprintable() else "?"
            accepted = ", ".join(known) or "none"
            raise UsageError(
                f"{endpoint.path} has no parameter '{shown[:100]}': it takes {accepted}"
            )
    if pairs > len(query):
        raise UsageError(f"{endpoint.path}: a parameter is given twice")
    return {
        name: _value(endpoint.path, param, query[name]) if name in query else param.default
        for name, param in known.items()
    }


def _value(path: str, param: Param, text: str) -> Any:
    given = f"{path}: {param.name}={text}"
    if not text.isprintable():
        raise UsageError(f"{path}: {param.name} holds what is no printable text")
    if param.kind == "string":
        if param.choices and text not in param.choices:
            raise UsageError(f"{given} is none of {', '.join(param.choices)}")
        if not param.low <= len(text) <= param.high:
            raise UsageError(f"{given[:200]} must have {param.low:g} to {param.high:g} characters")
        return text
    try:
        value = int(text) if param.kind == "integer" else float(text)
    except ValueError:
        value = math.nan
    if not param.low <= value <= param.high or not text.isascii() or "_" in text:
        kind = "an integer" if param.kind == "integer" else "a number"
        raise UsageError(f"{given[:200]} is not {kind} from {param.low:g} to {param.high:g}")
    return value
