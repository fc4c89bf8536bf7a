"""Preemption notices of four clouds, from one fake metadata server."""

import asyncio
import contextlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web

from agent.lifecycle import Advice, Notice
from agent.metadata import parse
from agent.metadata.providers import PROVIDERS, choose_provider, detect
from agent.metadata.watch import MAX_BODY_BYTES, MetadataWatcher
from spotlightd.errors import UsageError

NOW = datetime(2026, 12, 1, 8, 0, 0, tzinfo=UTC)
NAME = "vm-7"


def iso(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def http_date(moment: datetime) -> str:
    return moment.strftime("%a, %d %b %Y %H:%M:%S GMT")


def azure(status: str = "Scheduled", resource: str = NAME, kind: str = "Preempt") -> str:
    event = {
        "EventId": "1",
        "EventType": kind,
        "EventStatus": status,
        "Resources": [resource],
        "NotBefore": http_date(NOW + timedelta(seconds=40)),
    }
    return f'{{"DocumentIncarnation": 1, "Events": [{_json(event)}]}}'


def _json(value: object) -> str:
    import json

    return json.dumps(value)


NOTICES = {
    "aws": (_json({"action": "terminate", "time": iso(120)}), 120.0),
    "gcp": ("TRUE", 30.0),
    "azure": (azure(), 40.0),
    "alibaba": (iso(300), 300.0),
}


# --- what the answers mean --------------------------------------------------------------------


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_notice_says_how_long_is_left(name):
    body, seconds = NOTICES[name]
    assert PROVIDERS[name].parse(body, NOW, NAME) == seconds


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("gcp", "FALSE"),
        ("azure", '{"DocumentIncarnation": 1, "Events": []}'),
        ("azure", azure(status="Completed")),
        ("azure", azure(status="Canceled")),
        ("azure", azure(resource="vm-8")),
        ("azure", azure(kind="Reboot")),
        ("alibaba", ""),
    ],
)
def test_nothing_is_announced(name, body):
    assert PROVIDERS[name].parse(body, NOW, NAME) is None


def test_a_time_that_has_passed_leaves_nothing():
    assert parse.alibaba_termination_time(iso(-60), NOW, "") == 0.0


@pytest.mark.parametrize("name", PROVIDERS)
@pytest.mark.parametrize("body", ["{", "[]", '{"Events": 1}', "<html>", '{"action": 5}', "\0"])
def test_nonsense_is_an_error_and_no_notice(name, body):
    with pytest.raises(ValueError):
        PROVIDERS[name].parse(body, NOW, NAME)


# --- which cloud this is ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "text", "name"),
    [
        ("sys_vendor", "Amazon EC2\n", "aws"),
        ("sys_vendor", "Google\n", "gcp"),
        ("product_name", "Google Compute Engine\n", "gcp"),
        ("sys_vendor", "Microsoft Corporation\n", "azure"),
        ("sys_vendor", "Alibaba Cloud\n", "alibaba"),
    ],
)
def test_the_firmware_names_the_cloud(tmp_path, file, text, name):
    (tmp_path / file).write_text(text)
    assert choose_provider("auto", tmp_path) is PROVIDERS[name]


def test_a_bare_machine_has_no_cloud(tmp_path):
    assert detect(tmp_path) is None
    (tmp_path / "sys_vendor").write_text("QEMU\n")
    assert detect(tmp_path) is None
    assert choose_provider("none") is None
    with pytest.raises(UsageError, match="unknown provider 'azur'"):
        choose_provider("azur")


# --- the service ------------------------------------------------------------------------------


@dataclass
class FakeMetadata:
    """Answers as scripted: one entry of `answers` per question, the last one for ever."""

    answers: list[object]
    advice: object = 404
    """What AWS says of rebalancing."""
    posted: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    tokens: int = 0
    date: datetime = NOW
    hanging: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.Request) -> web.Response:
        path = request.path
        if path == "/latest/api/token":
            self.tokens += 1
            return web.Response(text=f"token-{self.tokens}")
        if path == "/metadata/instance/compute/name":
            return web.Response(text=NAME)
        if "rebalance" in path:
            return self.response(self.advice)
        if request.method == "POST":
            self.posted.append(await request.text())
            return web.Response()
        self.asked.append(path)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer == "hang":
            await self.hanging.wait()
        return self.response(answer)

    def response(self, answer: object) -> web.Response:
        if isinstance(answer, int):
            return web.Response(status=answer)
        return web.Response(text=str(answer), headers={"Date": http_date(self.date)})


@contextlib.asynccontextmanager
async def serving(fake: FakeMetadata):
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        fake.hanging.set()
        await runner.cleanup()


def quick(name: str):
    """The provider, without the pauses that politeness asks for."""
    import dataclasses

    return dataclasses.replace(PROVIDERS[name], poll_s=0.01, wait_s=0.0)


def announced(name: str, fake: FakeMetadata, acknowledge: bool = False) -> list[Notice | Advice]:
    """Return what a watcher says until its end, and acknowledge it where asked to."""

    async def run() -> list[Notice | Advice]:
        async with serving(fake) as url, asyncio.timeout(10):
            watcher = MetadataWatcher(quick(name), url + "/")
            said = [one async for one in watcher.events()]
            if acknowledge:
                await watcher.acknowledge()
            return said

    return asyncio.run(run())


def first_notice(name: str, fake: FakeMetadata) -> Notice:
    (notice,) = announced(name, fake)
    assert isinstance(notice, Notice)
    return notice


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_notice_arrives_after_every_kind_of_trouble(name, monkeypatch):
    monkeypatch.setattr("agent.metadata.watch.TIMEOUT_S", 0.3)
    body, seconds = NOTICES[name]
    trouble: list[object] = [404, 500, "hang", "{ nonsense", "x" * (MAX_BODY_BYTES + 1), 401]
    fake = FakeMetadata([*trouble, body])
    notice = first_notice(name, fake)
    assert notice == Notice(f"{name} metadata", seconds, preempted=True)
    assert len(fake.asked) == len(trouble) + 1


def test_an_expired_token_is_renewed():
    fake = FakeMetadata([404, 401, 404, NOTICES["aws"][0]])
    assert first_notice("aws", fake).deadline_s == 120.0
    assert fake.tokens == 2


def test_advice_to_move_comes_once_before_the_notice():
    fake = FakeMetadata([404, 404, 404, NOTICES["aws"][0]], advice=_json({"noticeTime": iso(0)}))
    advice, notice = announced("aws", fake)
    assert advice == Advice("aws metadata")
    assert notice == Notice("aws metadata", 120.0, preempted=True)


@pytest.mark.parametrize("nonsense", ["{", "[]", _json({"noticeTime": "soon"}), 500])
def test_advice_that_cannot_be_read_is_none(nonsense):
    fake = FakeMetadata([404, 404, NOTICES["aws"][0]], advice=nonsense)
    assert [type(one) for one in announced("aws", fake)] == [Notice]


def test_azure_is_told_last_that_this_vm_may_go():
    fake = FakeMetadata([azure()])
    announced("azure", fake, acknowledge=True)
    assert fake.posted == ['{"StartRequests": [{"EventId": "1"}]}']


def test_an_event_of_several_vms_is_not_started_by_one_of_them():
    shared = azure().replace(f'["{NAME}"]', f'["{NAME}", "vm-8"]')
    fake = FakeMetadata([shared])
    announced("azure", fake, acknowledge=True)
    assert fake.posted == []


@pytest.mark.parametrize("answer", ["{", 500, azure("Canceled")])
def test_where_nothing_can_be_acknowledged_nothing_is(answer):
    fake = FakeMetadata([azure(), answer])
    announced("azure", fake, acknowledge=True)
    assert fake.posted == []


def test_a_wrong_clock_of_this_host_does_not_matter():
    """The service's own time decides how long is left."""
    fake = FakeMetadata([NOTICES["alibaba"][0]], date=NOW + timedelta(seconds=100))
    assert first_notice("alibaba", fake).deadline_s == 200.0


def test_a_cancelled_event_is_no_notice():
    fake = FakeMetadata([azure("Canceled"), azure(resource="vm-8"), azure()])
    assert first_notice("azure", fake).deadline_s == 40.0
    assert len(fake.asked) == 3


def test_an_absent_service_disturbs_nobody(caplog):
    caplog.set_level("INFO")

    async def run() -> None:
        watcher = MetadataWatcher(quick("gcp"), "http://127.0.0.1:9")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                async for _ in watcher.events():
                    raise AssertionError("nobody announced anything")

    asyncio.run(run())
    said = [r.getMessage() for r in caplog.records if "metadata service" in r.getMessage()]
    assert said == ["gcp metadata service: cannot be reached (ClientConnectorError)"]
