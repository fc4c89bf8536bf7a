"""Requests that the description allows, and ones that it forbids: no 500, and what it promises."""

import http.client
import json
from pathlib import Path

import hypothesis
import pytest
import schemathesis
from schemathesis.generation import GenerationMode

from spotlightd.control.endpoints import ENDPOINTS
from spotlightd.control.openapi import describe
from spotlightd.control.server import listen_on_loopback

EXAMPLES = 12
"""Per operation and mode."""
LONGEST_LINE = 8000
ENDLESS = "/v1/stream"


@pytest.fixture
def url(served):
    """The whole API on TCP, without the check of who asks: schemathesis speaks no Unix sockets."""

    async def serve():
        listening = listen_on_loopback(0)
        await served.server._serve(served.server._app([], False), listening)
        served.daemon.arrived.set()
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    return served.on_loop(serve())


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_request_makes_it_fail(url, mode):
    schema = schemathesis.openapi.from_dict(describe())
    tried = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path == ENDLESS:
            continue
        try:
            strategy = operation.as_strategy(generation_mode=mode)
            run(strategy, url)
        except hypothesis.errors.Unsatisfiable:
            # Nothing about it can be wrong: it has neither parameters nor a body.
            assert mode is GenerationMode.NEGATIVE, operation.path
            continue
        tried += 1
    assert tried >= 15


def run(strategy, url):
    @hypothesis.given(case=strategy)
    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    def check(case):
        response = case.call(base_url=url)
        assert response.status_code < 500, (case.as_curl_command(), response.text)
        if len(response.request.url) > LONGEST_LINE:
            # The HTTP parser refuses it in words of its own, before there is a request.
            assert response.status_code == 400
            return
        case.validate_response(
            response,
            checks=[
                schemathesis.checks.not_a_server_error,
                schemathesis.specs.openapi.checks.response_schema_conformance,
                schemathesis.specs.openapi.checks.content_type_conformance,
                schemathesis.specs.openapi.checks.status_code_conformance,
            ],
        )

    check()


def test_the_description_is_served_and_whole(served):
    connection = http.client.HTTPConnection("x")
    connection.sock = served.connect()
    connection.request("GET", "/openapi.json")
    document = json.loads(connection.getresponse().read())
    connection.close()
    assert document == json.loads(json.dumps(describe()))
    operations = {(m.upper(), p) for p, ms in document["paths"].items() for m in ms}
    assert operations == {(e.method, e.path) for e in ENDPOINTS}
    for schema in document["components"]["schemas"].values():
        assert schema["type"] == "object"


def test_every_address_is_in_the_documents():
    text = (Path(__file__).parents[2] / "docs" / "control-api.md").read_text()
    for endpoint in ENDPOINTS:
        path = (
            endpoint.path.format(agent_id="a-3", request_id="ID", pool="spot")
            if endpoint.names
            else endpoint.path
        )
        if endpoint.method == "GET":
            assert f"`GET {path}`" in text, path
        else:
            assert f"http://localhost{path}" in text, path
