"""Asks a metadata service until it announces the end of this VM.

A service that is absent, slow or broken never disturbs the agent: it is asked again, and its state
is logged once when it changes.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import aiohttp

from agent.lifecycle import Notice
from agent.metadata.providers import Provider

logger = logging.getLogger(__name__)

TIMEOUT_S = 5.0
MAX_BODY_BYTES = 64 * 1024
TOKEN_TTL_S = 21600
TOKEN_HEADER = "X-aws-ec2-metadata-token"


class MetadataWatcher:
    """One provider's service.

    Args:
        base_url: replaces the provider's own, for proxies and tests.
    """

    def __init__(self, provider: Provider, base_url: str = "") -> None:
        self._provider = provider
        self._base = (base_url or provider.base_url).rstrip("/")
        self._token = ""
        self._own_name = ""
        self._said = ""

    async def events(self) -> AsyncIterator[Notice]:
        """Yield one notice when the service announces this VM's end."""
        timeout = aiohttp.ClientTimeout(total=self._provider.wait_s + TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                seconds = await self._ask(session)
                if seconds is not None:
                    yield Notice(f"{self._provider.name} metadata", seconds, preempted=True)
                    return
                await asyncio.sleep(self._provider.poll_s)

    async def _ask(self, session: aiohttp.ClientSession) -> float | None:
        """Return the seconds left, or None where nothing is announced or nobody answers."""
        try:
            if self._provider.token_path and not self._token:
                self._token = await self._fetch_token(session)
            if self._provider.name_path and not self._own_name:
                status, name, _ = await self._get(session, self._provider.name_path)
                self._own_name = name.strip() if status == 200 else ""
            status, body, now = await self._get(session, self._provider.path)
            if status == 401:
                # The token has expired: the next question brings a new one.
                self._token = ""
                return None
            if status == 404:
                self._say("no notice")
                return None
            if status != 200:
                self._say(f"answers {status}")
                return None
            seconds = self._provider.parse(body, now, self._own_name)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._say(f"cannot be reached ({type(error).__name__})")
            return None
        except ValueError as error:
            self._say(f"answers what cannot be read ({error})")
            return None
        self._say("no notice" if seconds is None else "notice")
        return seconds

    async def _get(self, session: aiohttp.ClientSession, path: str) -> tuple[int, str, datetime]:
        """Return status, body and the service's own time: this host's clock may be wrong."""
        headers = dict(self._provider.headers)
        if self._token:
            headers[TOKEN_HEADER] = self._token
        async with session.get(self._base + path, headers=headers) as answer:
            body = await answer.content.read(MAX_BODY_BYTES + 1)
            if len(body) > MAX_BODY_BYTES:
                raise ValueError(f"more than {MAX_BODY_BYTES} bytes")
            return answer.status, body.decode(errors="replace"), _now(answer.headers.get("Date"))

    async def _fetch_token(self, session: aiohttp.ClientSession) -> str:
        headers = {f"{TOKEN_HEADER}-ttl-seconds": str(TOKEN_TTL_S)}
        url = self._base + self._provider.token_path
        async with session.put(url, headers=headers) as answer:
            answer.raise_for_status()
            return (await answer.content.read(4096)).decode("ascii").strip()

    def _say(self, state: str) -> None:
        if state != self._said:
            self._said = state
            logger.info("%s metadata service: %s", self._provider.name, state)


def _now(date: str | None) -> datetime:
    try:
        moment = parsedate_to_datetime(date) if date else datetime.now(UTC)
    except (TypeError, ValueError):
        moment = datetime.now(UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
