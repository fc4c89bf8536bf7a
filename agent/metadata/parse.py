"""What metadata services answer, as notices: pure functions of body and time.

Each returns the seconds that are left, or None where the answer announces no end of this VM.
`own_name` is the VM's name where a service lists several (Azure).
Malformed answers raise ValueError: a service that talks nonsense must not end a worker.
"""

import json
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

GCP_GRACE_S = 30.0
"""Google's notice carries no time: between ACPI G2 and G3 lie 30 seconds."""
AZURE_GRACE_S = 30.0
"""Least time that Azure promises; used where an event already started."""


def aws_instance_action(body: str, now: datetime, own_name: str) -> float | None:
    """`spot/instance-action`: {"action": "terminate", "time": "2026-12-01T08:22:00Z"}."""
    answer = _object(body)
    if answer.get("action") not in ("terminate", "stop", "hibernate"):
        raise ValueError(f"unknown action {answer.get('action')!r}")
    return _left(_iso(answer.get("time")), now)


def aws_rebalance(body: str) -> bool:
    """`events/recommendations/rebalance`: {"noticeTime": "2026-12-01T08:20:00Z"}, else 404."""
    _iso(_object(body).get("noticeTime"))
    return True


def gcp_preempted(body: str, now: datetime, own_name: str) -> float | None:
    """`instance/preempted`: TRUE or FALSE."""
    word = body.strip().upper()
    if word not in ("TRUE", "FALSE"):
        raise ValueError(f"expected TRUE or FALSE, got {body[:40]!r}")
    return GCP_GRACE_S if word == "TRUE" else None


def azure_scheduled_events(body: str, now: datetime, own_name: str) -> float | None:
    """`scheduledevents`: the earliest Preempt event of this VM that is scheduled or started.

    The list holds the events of the whole scale set, by resource name. A cancelled event leaves
    it, or says so in its status; it announces nothing.
    """
    return min((_azure_event(event, now) for event in _preempts(body, own_name)), default=None)


def azure_acknowledgement(body: str, own_name: str) -> str | None:
    """Return the JSON that lets this VM's announced end begin at once; None: nothing is announced.

    An event that names other VMs too is theirs as well and stays.
    """
    own = [e for e in _preempts(body, own_name) if e.get("EventId") and len(e["Resources"]) == 1]
    return json.dumps({"StartRequests": [{"EventId": e["EventId"]} for e in own]}) if own else None


def _preempts(body: str, own_name: str) -> list[dict[str, Any]]:
    events = _object(body).get("Events")
    if not isinstance(events, list):
        raise ValueError("expected a list of Events")
    return [
        event
        for event in events
        if isinstance(event, dict)
        and event.get("EventType") == "Preempt"
        and event.get("EventStatus") in ("Scheduled", "Started")
        and (not own_name or own_name in event.get("Resources", ()))
    ]


def _azure_event(event: dict[str, Any], now: datetime) -> float:
    not_before = event.get("NotBefore")
    if event["EventStatus"] == "Started" or not not_before:
        return AZURE_GRACE_S
    try:
        return _left(parsedate_to_datetime(str(not_before)), now)
    except (TypeError, ValueError):
        raise ValueError(f"NotBefore is no date: {not_before!r}") from None


def alibaba_termination_time(body: str, now: datetime, own_name: str) -> float | None:
    """`spot/termination-time`: a UTC time; older services answer with nothing at all."""
    return _left(_iso(body.strip()), now) if body.strip() else None


def _object(body: str) -> dict[str, Any]:
    answer = json.loads(body)
    if not isinstance(answer, dict):
        raise ValueError("expected a JSON object")
    return answer


def _iso(text: object) -> datetime:
    moment = datetime.fromisoformat(str(text))
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _left(moment: datetime, now: datetime) -> float:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max((moment - now).total_seconds(), 0.0)
