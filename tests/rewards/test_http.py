"""The `http` reward against a real server in this process: formats, retries, refusals."""

import asyncio
import base64
import io
import json
import pickle
import threading

import numpy as np
import pytest
from aiohttp import web
from PIL import Image

from spotlightd.errors import ConfigError
from spotlightd.rewards import http
from spotlightd.rewards.http import HttpReward, RewardServerError, is_loopback
from spotlightd.rewards.scoring import Scorer
from spotlightd.wire.rewards import RewardOptions

RECORD = '{"include": [{"class": "cup", "count": 1}]}'
IMAGES = [np.full((8, 8, 3), shade, np.uint8) for shade in (10, 250)]
PROMPTS = ["a dark cup", "a light cup"]
TARGETS = [RECORD, RECORD]


class Server:
    """Answers with `answers` in turn, the last one for ever: a function of the request."""

    def __init__(self):
        self.answers = []
        self.requests = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._ready.wait(10)

    def _run(self):
        self._loop.run_until_complete(self._serve())

    async def _serve(self):
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/score", self._answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/score"
        self._stop = asyncio.Event()
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _answer(self, request):
        handler = self.answers[min(self.requests, len(self.answers) - 1)]
        self.requests += 1
        return await handler(request)

    def close(self):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture(scope="module")
def running():
    server = Server()
    yield server
    server.close()


@pytest.fixture
def server(running, monkeypatch):
    monkeypatch.setattr(http, "FIRST_PAUSE_S", 0.001)
    running.requests = 0
    return running


def brightness(png):
    return float(np.asarray(Image.open(io.BytesIO(png)).convert("L")).mean())


async def by_json(request):
    body = await request.json()
    assert (body["prompts"], body["targets"]) == (PROMPTS, TARGETS)
    return web.json_response(
        {"scores": [brightness(base64.b64decode(image)) for image in body["images"]]}
    )


async def by_multipart(request):
    form = await request.post()
    assert json.loads(form["request"])["prompts"] == PROMPTS
    files = form.getall("images")
    return web.json_response({"scores": [brightness(file.file.read()) for file in files]})


async def by_pickle(request):
    asked = pickle.loads(await request.read())
    assert asked["meta_datas"][0]["include"][0]["class"] == "cup"
    scores = [np.float32(brightness(image)) for image in asked["images"]]
    return web.Response(body=pickle.dumps({"scores": scores, "strict_rewards": np.zeros(2)}))


def answers(body, status=200):
    async def handler(_):
        return web.Response(body=body, status=status)

    return handler


async def slowly(_):
    await asyncio.sleep(0.5)
    return web.Response(status=200)


def ask(server, **options):
    reward = HttpReward(RewardOptions(http_url=server.url, **options))
    return reward.score(IMAGES, PROMPTS, TARGETS)


@pytest.mark.parametrize(
    ("handler", "options"),
    [
        (by_json, {}),
        (by_multipart, {"http_format": "multipart"}),
        (by_pickle, {"http_format": "geneval_pickle", "trust_pickle": True}),
    ],
)
def test_every_format_brings_the_images_and_takes_the_scores(server, handler, options):
    server.answers = [handler]
    assert ask(server, **options) == [10.0, 250.0]


def test_a_passing_failure_is_tried_again(server):
    server.answers = [answers(b"", 503), answers(b"", 429), by_json]
    assert ask(server, http_retries=2) == [10.0, 250.0]
    assert server.requests == 3


def test_a_failure_that_stays_has_a_name_and_the_number_of_tries(server):
    server.answers = [answers(b"", 500)]
    with pytest.raises(RewardServerError, match=r"HTTP status 500 \(tried 3 times\)"):
        ask(server, http_retries=2)


def test_a_refusal_is_not_tried_again(server):
    server.answers = [answers(b"", 403)]
    with pytest.raises(RewardServerError, match="refused with HTTP status 403"):
        ask(server)
    assert server.requests == 1


def test_a_server_that_does_not_answer_is_given_up(server):
    server.answers = [slowly]
    with pytest.raises(RewardServerError, match=r"did not answer within 0.05 s \(tried 2 times\)"):
        ask(server, http_timeout_s=0.05, http_retries=1)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"nothing", "no JSON"),
        (b"[1, 2]", "without 2 'scores'"),
        (b'{"scores": [1.0]}', "without 2 'scores'"),
        (b'{"scores": [1.0, null]}', "no number"),
        (b'{"scores": [1.0, "nan"]}', "not finite"),
    ],
)
def test_an_answer_that_is_none_is_an_error(server, body, says):
    server.answers = [answers(body)]
    with pytest.raises(RewardServerError, match=says):
        ask(server)


def test_an_endless_answer_is_cut_off(server, monkeypatch):
    monkeypatch.setattr(http, "MAX_ANSWER_BYTES", 1000)
    server.answers = [answers(b" " * 2000)]
    with pytest.raises(RewardServerError, match="more than 1000 bytes"):
        ask(server)


class Evil:
    def __reduce__(self):
        return (print, ("run by a pickle",))


def test_a_pickle_that_would_run_code_is_refused(server, capsys):
    server.answers = [answers(pickle.dumps({"scores": [1.0, Evil()]}))]
    with pytest.raises(RewardServerError, match=r"builtins.print is not allowed"):
        ask(server, http_format="geneval_pickle", trust_pickle=True)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("url", ["http://10.0.0.1/", "http://example.net/", "http://[::2]/"])
def test_pickles_come_from_this_machine_alone(url):
    options = RewardOptions(http_url=url, http_format="geneval_pickle", trust_pickle=True)
    with pytest.raises(ConfigError, match="for a server on this machine"):
        HttpReward(options)
    assert is_loopback("http://localhost:1/") and is_loopback("http://[::1]/")


def test_pickles_need_a_yes():
    options = RewardOptions(http_url="http://127.0.0.1:1/", http_format="geneval_pickle")
    with pytest.raises(ConfigError, match="trust_pickle = true"):
        Scorer(["http"], options)


def test_a_server_that_is_down_is_asked_once_a_batch_and_is_no_zero(server):
    server.answers = [answers(b"", 500)]
    options = RewardOptions(http_url=server.url, http_retries=0)
    outcomes = Scorer(["http"], options).score(IMAGES, TARGETS, PROMPTS)
    assert [out.scores for out in outcomes] == [{}, {}]
    assert all("HTTP status 500" in out.error for out in outcomes) and server.requests == 1
