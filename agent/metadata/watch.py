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

from agent.lifecycle import Advice, Notice
from agent.metadata.providers import Provider

logger = logging.getLogger(__name__)

TIMEOUT_S = 5.0
ACKNOWLEDGE_S = 2.0
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

    async def events(self) -> AsyncIterator[Notice | Advice]:
        """Yield at most one piece of advice, and one notice when this VM's end is announced."""
        async with self._session(self._provider.wait_s + TIMEOUT_S) as session:
            advised = False
            while True:
                answer = await self._ask(session)
                if isinstance(answer, Notice):
                    yield answer
                    return
                if answer is not None and not advised:
                    advised = True
                    yield answer
                await asyncio.sleep(self._provider.poll_s)

    async def acknowledge(self) -> None:
        """Tell the service that this VM may go now. The last thing to do: it need not wait."""
        if self._provider.acknowledgement is None:
            return
        try:
            async with self._session(ACKNOWLEDGE_S) as session:
                _, body, _ = await self._get(session, self._provider.path)
                answer = self._provider.acknowledgement(body, self._own_name)
                if answer is not None:
                    url = self._base + self._provider.path
                    headers = {**self._provider.headers, "Content-Type": "application/json"}
                    async with session.post(url, data=answer, headers=headers) as response:
                        self._say(f"told that this VM may go, answers {response.status}")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            self._say(f"cannot be told that this VM may go ({type(error).__name__})")

    def _session(self, timeout_s: float) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s))

    async def _ask(self, session: aiohttp.ClientSession) -> Notice | Advice | None:
        """Return what is announced, or None where nothing is or nobody answers."""
        provider = self._provider
        try:
            if provider.token_path and not self._token:
                self._token = await self._fetch_token(session)
            if provider.name_path and not self._own_name:
                status, name, _ = await self._get(session, provider.name_path)
                self._own_name = name.strip() if status == 200 else ""
            status, body, now = await self._get(session, provider.path)
            if status == 200:
                seconds = provider.parse(body, now, self._own_name)
                if seconds is not None:
                    self._say("notice")
                    return Notice(f"{provider.name} metadata", seconds, preempted=True)
            elif status not in (401, 404):
                self._say(f"answers {status}")
                return None
            if provider.is_advice is not None:
                status, body, _ = await self._get(session, provider.advice_path)
                if status == 200 and provider.is_advice(body):
                    self._say("advice to move")
                    return Advice(f"{provider.name} metadata")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._say(f"cannot be reached ({type(error).__name__})")
            return None
        except ValueError as error:
            self._say(f"answers what cannot be read ({error})")
            return None
        self._say("no notice")
        return None

    async def _get(self, session: aiohttp.ClientSession, path: str) -> tuple[int, str, datetime]:
        """Return status, body and the service's own time: this host's clock may be wrong."""
        headers = dict(self._provider.headers)
        if self._token:
            headers[TOKEN_HEADER] = self._token
        async with session.get(self._base + path, headers=headers) as answer:
            if answer.status == 401:
                # The token has expired: the next question brings a new one.
                self._token = ""
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
