"""What Prometheus scrapes, read back by its own parser; JSON logs and their context."""

import io
import json
import logging

import pytest
from prometheus_client.parser import text_string_to_metric_families

from spotlightd import logs
from spotlightd.fleet.latency import Latency
from spotlightd.telemetry.metrics import DaemonCollector, Extra
from tests.control.conftest import RecordingDaemon


def samples(extra):
    text = DaemonCollector(RecordingDaemon()).text(extra).decode()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_figures_are_the_daemons():
    commits = Latency()
    for seconds in (0.002, 0.004, 30.0):
        commits.observe(seconds)
    found = samples(Extra(commits, {"aws": 2}, {"planner.rho": 0.9}, 4096))
    assert found["spotlight_iteration",] == 4
    assert found["spotlight_agents", ("state", "draining")] == 1
    assert found["spotlight_agents", ("state", "lost")] == 0
    assert found["spotlight_requests", ("kind", "explore"), ("state", "leased")] == 12
    assert found["spotlight_gpu_seconds_total", ("class", "useful")] == pytest.approx(120.4)
    assert found["spotlight_cost", ("currency", "USD"), ("what", "all_on_demand")] == 3.0
    assert found["spotlight_preemption_notices_total", ("source", "aws")] == 2
    assert found["spotlight_weights_sent_bytes_total",] == 4096
    assert found["spotlight_iteration_figure", ("name", "planner.rho")] == 0.9
    assert found["spotlight_commit_seconds_bucket", ("le", "0.0025")] == 1
    assert found["spotlight_commit_seconds_bucket", ("le", "10")] == 2
    assert found["spotlight_commit_seconds_count",] == 3
    assert found["spotlight_lost_trajectories",] == 0


def test_a_scrape_is_no_count():
    collector = DaemonCollector(RecordingDaemon())
    assert collector.text(Extra()) == collector.text(Extra())


@pytest.fixture
def out():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    logs.configure(as_json=True, stream=stream)
    yield stream
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(False)
    logs.clear_context()


def test_every_json_line_says_run_and_iteration(out):
    logs.set_context(run="words", iteration=7)
    logging.getLogger("spotlightd.fleet").warning(
        "late", extra={"agent_id": "a-1", "request_id": "r"}
    )
    (line,) = map(json.loads, out.getvalue().splitlines())
    assert (line["run"], line["iteration"], line["agent_id"], line["request_id"]) == (
        "words", 7, "a-1", "r")  # fmt: skip


def test_a_configurations_secrets_are_hidden():
    shown = logs.redact_values(
        {"http_url": "https://me:hunter2@host/x", "names": ["spl1.a.b.c.secret", 3, None]}
    )
    assert "hunter2" not in str(shown) and "spl1.a" not in str(shown)
    assert shown["names"][1:] == [3, None] and shown["http_url"].endswith("@host/x")
