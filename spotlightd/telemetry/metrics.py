"""Figures for Prometheus, taken from the daemon when they are asked for: nothing is counted twice.

# HELP spotlight_gpu_seconds_total GPU time by class.
spotlight_gpu_seconds_total{class="useful",role="agent"} 1234.5
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from spotlightd.control import api
from spotlightd.control.port import Daemon
from spotlightd.fleet.latency import BOUNDS_S, Latency

STATES = ("live", "suspect", "draining", "lost", "gone")


@dataclass
class Extra:
    """What the control API does not tell."""

    commits: Latency = field(default_factory=Latency)
    """From a result's arrival to its being durable."""
    notices: Mapping[str, int] = field(default_factory=dict)
    """Preemption notices by source."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Newest iteration's figures, by metric name."""
    weights_bytes: int = 0
    """Bytes of weights that the daemon served."""


class DaemonCollector(Collector):
    """Turns the daemon's answers into metric families at each scrape."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self.extra = Extra()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self, extra: Extra) -> bytes:
        """Return all families in Prometheus' text format."""
        self.extra = extra
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        # Without it, registering would already ask a daemon that is being built.
        return []

    def collect(self) -> Iterator[Metric]:
        status = self._daemon.status()
        yield from _run(status)
        yield from _fleet(status, self._daemon.agents())
        yield from _money(status)
        yield from self._extra()

    def _extra(self) -> Iterator[Metric]:
        commits = self.extra.commits
        buckets = [(f"{b:g}", n) for b, n in zip(BOUNDS_S, commits.cumulative(), strict=False)]
        yield HistogramMetricFamily(
            "spotlight_commit_seconds",
            "From a result's arrival to its being durable.",
            buckets=[*buckets, ("+Inf", commits.count)],
            sum_value=commits.total_s,
        )
        notices = CounterMetricFamily(
            "spotlight_preemption_notices", "Notices by source.", labels=["source"]
        )
        for source, count in self.extra.notices.items():
            notices.add_metric([source], count)
        yield notices
        yield CounterMetricFamily(
            "spotlight_weights_sent_bytes",
            "Bytes of weights that the daemon itself served.",
            value=self.extra.weights_bytes,
        )
        figures = GaugeMetricFamily(
            "spotlight_iteration_figure",
            "Figures of the newest measured iteration, by the names that curves have.",
            labels=["name"],
        )
        for name, value in self.extra.figures.items():
            figures.add_metric([name], value)
        yield figures


def _run(status: api.Status) -> Iterator[Metric]:
    yield InfoMetricFamily(
        "spotlight_build",
        "Release and protocol.",
        value={"version": status.version, "protocol": ".".join(map(str, status.protocol))},
    )
    yield InfoMetricFamily(
        "spotlight_run",
        "The run and where it stands.",
        value={"run": status.run, "state": status.run_state, "phase": status.phase},
    )
    for name, text, value in (
        ("iteration", "Iteration in progress.", status.iteration),
        ("iterations", "Iterations of the whole run.", status.iterations),
        ("policy_version", "Newest published weights.", status.policy_version),
        ("epoch", "Starts of the daemon on this state.", status.epoch),
        ("uptime_seconds", "Since the daemon's start.", status.uptime_s),
        ("lost_trajectories", "Acknowledged, then lost: 0, or something broke.", status.lost),
    ):
        yield GaugeMetricFamily(f"spotlight_{name}", text, value=value)
    reward = GaugeMetricFamily("spotlight_reward", "Mean reward.", labels=["what"])
    if status.reward.control_mean is not None:
        reward.add_metric(["control"], status.reward.control_mean)
    if status.reward.held_out:
        for name, value in status.reward.held_out[-1].scores.items():
            reward.add_metric([f"held_out.{name}"], value)
    yield reward


def _fleet(status: api.Status, agents: list[api.AgentRow]) -> Iterator[Metric]:
    states = GaugeMetricFamily("spotlight_agents", "Agents by state.", labels=["state"])
    for state in STATES:
        states.add_metric([state], status.agents.get(state, 0))
    yield states
    leases = GaugeMetricFamily("spotlight_leases", "Requests held.", labels=["agent", "role"])
    for row in agents:
        leases.add_metric([row.agent_id, row.role], row.leases)
    yield leases
    requests = GaugeMetricFamily(
        "spotlight_requests", "Requests by kind and state.", labels=["kind", "state"]
    )
    for kind, counts in status.requests.items():
        for state, count in counts.items():
            requests.add_metric([kind, state], count)
    yield requests


def _money(status: api.Status) -> Iterator[Metric]:
    seconds = CounterMetricFamily("spotlight_gpu_seconds", "GPU time held.", labels=["class"])
    for name, value in status.gpu_seconds.items():
        seconds.add_metric([name], value)
    yield seconds
    cost = GaugeMetricFamily(
        "spotlight_cost", "Money for the time held so far.", labels=["what", "currency"]
    )
    for what, value in (
        ("reserved", status.cost.reserved),
        ("spot", status.cost.spot),
        ("all_on_demand", status.cost.all_reserved),
    ):
        cost.add_metric([what, status.cost.currency], value)
    yield cost
