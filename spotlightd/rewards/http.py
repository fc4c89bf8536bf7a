"""The `http` reward: a server scores whole batches (docs/rewards.md states the three formats).

A passing failure (no connection, time-out, 429, 5xx) is tried again; anything else, and the last
try, is an error with a name, never a score.
"""

import asyncio
import base64
import io
import ipaddress
import json
import pickle
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
import numpy as np

from spotlightd.dit.png import encode_png
from spotlightd.errors import ConfigError, SpotlightError
from spotlightd.wire.rewards import RewardOptions

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 8.0
MAX_ANSWER_BYTES = 16 * 2**20


class RewardServerError(SpotlightError):
    """The server did not score the batch."""


class _PassingError(RewardServerError):
    """Another try may succeed."""


class HttpReward:
    """Scores batches with the server of `options`. Raises ConfigError where that is not allowed."""

    def __init__(self, options: RewardOptions) -> None:
        self._options = options
        self._is_pickle = options.http_format == "geneval_pickle"
        if self._is_pickle and not (options.trust_pickle and is_loopback(options.http_url)):
            raise ConfigError(
                f"rewards.http_format 'geneval_pickle' is for a server on this machine that you "
                f"trust, with rewards.trust_pickle = true; {options.http_url} is not one"
            )

    def score(
        self, images: Sequence[np.ndarray], prompts: Sequence[str], targets: Sequence[str]
    ) -> list[float]:
        """Return one finite number an image.

        Raises RewardServerError when the server cannot be reached, refuses, or answers with
        anything but as many finite numbers.
        """
        pngs = [encode_png(image) for image in images]
        answer = asyncio.run(self._ask(pngs, prompts, targets))
        scores = answer.get("scores") if isinstance(answer, dict) else None
        if not isinstance(scores, list) or len(scores) != len(images):
            raise RewardServerError(
                f"{self._options.http_url} answered without {len(images)} 'scores'"
            )
        try:
            numbers = [float(score) for score in scores]
        except (TypeError, ValueError):
            raise RewardServerError(
                f"{self._options.http_url} answered with a score that is no number"
            ) from None
        if not np.isfinite(numbers).all():
            raise RewardServerError(f"{self._options.http_url} gave a score that is not finite")
        return numbers

    async def _ask(
        self, pngs: Sequence[bytes], prompts: Sequence[str], targets: Sequence[str]
    ) -> Any:
        timeout = aiohttp.ClientTimeout(total=self._options.http_timeout_s)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            for attempt in range(self._options.http_retries + 1):
                try:
                    return await self._try(session, pngs, prompts, targets)
                except _PassingError as error:
                    if attempt == self._options.http_retries:
                        raise RewardServerError(f"{error} (tried {attempt + 1} times)") from None
                    await asyncio.sleep(min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S))
        raise AssertionError("the last try returns or raises")

    async def _try(
        self,
        session: aiohttp.ClientSession,
        pngs: Sequence[bytes],
        prompts: Sequence[str],
        targets: Sequence[str],
    ) -> Any:
        url = self._options.http_url
        try:
            async with session.post(url, **self._body(pngs, prompts, targets)) as answer:
                if answer.status == 429 or answer.status >= 500:
                    raise _PassingError(f"{url} answered with HTTP status {answer.status}")
                if answer.status != 200:
                    raise RewardServerError(f"{url} refused with HTTP status {answer.status}")
                content = await _read_bounded(answer, url)
        except TimeoutError:
            limit = self._options.http_timeout_s
            raise _PassingError(f"{url} did not answer within {limit:g} s") from None
        except aiohttp.InvalidURL:
            raise RewardServerError(f"rewards.http_url '{url}' is no URL") from None
        except aiohttp.ClientError as error:
            raise _PassingError(f"{url} cannot be reached: {error}") from None
        return _read_pickle(content, url) if self._is_pickle else _read_json(content, url)

    def _body(
        self, pngs: Sequence[bytes], prompts: Sequence[str], targets: Sequence[str]
    ) -> dict[str, Any]:
        texts = {"prompts": list(prompts), "targets": list(targets)}
        match self._options.http_format:
            case "json":
                return {"json": {"images": [base64.b64encode(p).decode() for p in pngs], **texts}}
            case "multipart":
                form = aiohttp.FormData()
                form.add_field("request", json.dumps(texts), content_type="application/json")
                for number, png in enumerate(pngs):
                    form.add_field(
                        "images", png, filename=f"{number}.png", content_type="image/png"
                    )
                return {"data": form}
            case "geneval_pickle":
                records = [json.loads(target) for target in targets]
                asked = {"images": list(pngs), "meta_datas": records, "only_strict": False}
                return {"data": pickle.dumps(asked, protocol=4)}


async def _read_bounded(answer: aiohttp.ClientResponse, url: str) -> bytes:
    content = bytearray()
    async for chunk in answer.content.iter_any():
        content += chunk
        if len(content) > MAX_ANSWER_BYTES:
            raise RewardServerError(f"{url} answered with more than {MAX_ANSWER_BYTES} bytes")
    return bytes(content)


def is_loopback(url: str) -> bool:
    """Whether a URL's host is this machine by its form alone; no name is looked up."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read_json(content: bytes, url: str) -> Any:
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RewardServerError(f"{url} answered with something that is no JSON: {error}") from None


class _NumbersOnly(pickle.Unpickler):
    """Reads lists, dicts, texts and numpy's numbers: what reward servers send. Nothing is run."""

    ALLOWED = ("scalar", "dtype", "ndarray", "_reconstruct")

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "numpy" and name in self.ALLOWED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed in an answer")


def _read_pickle(content: bytes, url: str) -> Any:
    try:
        return _NumbersOnly(io.BytesIO(content)).load()
    except Exception as error:
        # A damaged pickle can raise anything.
        raise RewardServerError(f"{url} answered with a pickle that is refused: {error}") from None
