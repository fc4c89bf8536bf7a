"""Logs of a process in the foreground: one line per record on stderr, secrets taken out.

Plain:  2026-12-01T13:52:04.123Z INFO    fleet      agent a-1 joined iteration=3
JSON:   {"time": "...", "level": "info", "component": "fleet", "text": "...", "iteration": 3}

The component is the logger's name below its package. Context goes into `extra`, by the names in
FIELDS: `log.info("committed", extra={"request_id": ...})`.
"""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

FIELDS = ("run", "iteration", "request_id", "agent_id", "policy_version")

HIDDEN = "[hidden]"

_process: dict[str, object] = {}
"""Fields of every record of this process."""

_TOKEN = re.compile(r"spl1\.[^\s\"']+")
_NAMED = re.compile(
    r"""((?:secret|token|ticket|password|proof|\bkey|_key)\w*["']?\s*[=:]\s*b?["']?)[^\s"']{16,}""",
    re.IGNORECASE,
)
# A CURVE key in Z85: forty characters of this alphabet standing alone. The look-ahead asks for
# two signs that paths and digests do not have; one key in two thousand has fewer.
_Z85 = r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]"
_RARE = r"[+=^!*?&<>()\[\]{}@%$#]"
_KEY = re.compile(rf"(?<!\S)(?=(?:\S*?{_RARE}){{2}}){_Z85}{{40}}(?!\S)")


_PASSWORD = re.compile(r"(://[^\s/:@]*:)[^\s/@]+@")


def redact(text: str) -> str:
    """Hide join tokens, CURVE keys, and long values that are named as secrets."""
    text = _TOKEN.sub(f"spl1.{HIDDEN}", text)
    text = _NAMED.sub(rf"\g<1>{HIDDEN}", text)
    return _KEY.sub(HIDDEN, text)


def redact_values(value: Any) -> Any:
    """Hide secrets, and passwords in addresses, in plain values such as a configuration's."""
    match value:
        case str():
            return redact(_PASSWORD.sub(rf"\g<1>{HIDDEN}@", value))
        case list() | tuple():
            return [redact_values(item) for item in value]
        case dict():
            return {key: redact_values(item) for key, item in value.items()}
        case _:
            return value


def set_context(**fields: object) -> None:
    """Name fields, out of FIELDS, that every record of this process carries from now on."""
    _process.update(fields)


def clear_context() -> None:
    """Forget what `set_context` was told."""
    _process.clear()


def configure(
    level: int = logging.INFO, as_json: bool = False, stream: TextIO | None = None
) -> None:
    """Send all records of this process to one stream (default stderr), and nowhere else."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else PlainFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    # asyncio and aiohttp report at INFO what is of no use to an operator.
    for name in ("asyncio", "aiohttp"):
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


class PlainFormatter(logging.Formatter):
    """One line per record; a trace, if there is one, follows it."""

    def format(self, record: logging.LogRecord) -> str:
        # What all records share would only make lines long for people.
        own = {name: record.__dict__[name] for name in FIELDS if name in record.__dict__}
        context = "".join(f" {name}={value}" for name, value in own.items())
        line = (
            f"{_time(record)} {record.levelname:<7} {_component(record):<10} "
            f"{_one_line(record.getMessage())}{context}"
        )
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return redact(line)


class JsonFormatter(logging.Formatter):
    """One JSON object per record; a trace is its `trace`."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "component": _component(record),
            "text": redact(record.getMessage()),
            **{
                name: redact(value) if isinstance(value, str) else value
                for name, value in _context(record).items()
            },
        }
        if record.exc_info:
            entry["trace"] = redact(self.formatException(record.exc_info))
        return json.dumps(entry, ensure_ascii=False, default=str)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _component(record: logging.LogRecord) -> str:
    package, _, rest = record.name.partition(".")
    return rest.partition(".")[0] or package


def _context(record: logging.LogRecord) -> dict[str, object]:
    given = _process | record.__dict__
    return {name: given[name] for name in FIELDS if name in given}


def _one_line(text: str) -> str:
    return text.replace("\n", "\\n")
