import io
import json
import logging
import os
import secrets

import pytest
import zmq

from spotlightd import logs


@pytest.fixture
def lines():
    """Configure logging onto a string, and put the root logger back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()

    def configure(**options):
        logs.configure(stream=stream, **options)
        return stream

    yield configure
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(False)


TOKEN = "spl1.127.0.0.1:5555.rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7.t1.sEcReT"


def test_plain_line(lines):
    out = lines()
    logging.getLogger("spotlightd.fleet.link").info("joined %s", "a-1", extra={"iteration": 3})
    moment, level, component, rest = out.getvalue().rstrip("\n").split(None, 3)
    assert moment.endswith("Z") and (level, component) == ("INFO", "fleet")
    assert rest == "joined a-1 iteration=3"


def test_a_record_stays_one_line(lines):
    out = lines()
    logging.getLogger("agent.main").warning("two\nlines")
    assert out.getvalue().count("\n") == 1 and "agent" not in out.getvalue()


def test_json_line(lines):
    out = lines(as_json=True)
    log = logging.getLogger("spotlightd.store")
    log.error("disk %s", "full", extra={"request_id": "r-1", "iteration": 2})
    try:
        raise ValueError(f"token {TOKEN}")
    except ValueError:
        log.exception("failed")
    first, second = map(json.loads, out.getvalue().splitlines())
    assert first["text"] == "disk full" and first["component"] == "store"
    assert (first["level"], first["request_id"], first["iteration"]) == ("error", "r-1", 2)
    assert "ValueError" in second["trace"] and "sEcReT" not in second["trace"]


@pytest.mark.parametrize("as_json", [False, True])
def test_secrets_are_hidden_wherever_they_stand(lines, as_json):
    out = lines(as_json=as_json)
    log = logging.getLogger("spotlightd.fleet")
    log.info("join %s", TOKEN)
    log.info("secret=%s", "0123456789abcdef0123")
    log.info("x", extra={"agent_id": TOKEN})
    try:
        raise ValueError(TOKEN)
    except ValueError:
        log.exception("bad")
    text = out.getvalue()
    assert "sEcReT" not in text and "0123456789abcdef0123" not in text
    assert text.count(logs.HIDDEN) >= 4


def test_curve_keys_are_hidden():
    hidden = 0
    for _ in range(200):
        _, secret = zmq.curve_keypair()
        hidden += secret.decode() not in logs.redact(f"loaded {secret.decode()} from file")
    assert hidden >= 198


def test_ordinary_text_is_left_alone():
    for text in (
        f"wrote {os.path.abspath(__file__)}",
        f"blob {secrets.token_hex(32)} and commit {secrets.token_hex(20)}",
        "unknown key 'run.iteratons'; did you mean 'run.iterations'?",
        "/var/lib/spotlight/weights/12/adapter.xyz",  # forty characters
        "key: 3 tokens created, ticket 7",
    ):
        assert logs.redact(text) == text
