"""The scheduler alone: lease-and-commit cycles a second, by the size of the fleet.

    python benchmarks/scheduler.py [--json FILE] [--check] [--cycles 60000]

One cycle is what the daemon's scheduler does for one rollout: a worker gives credit, gets a lease,
commits progress twice and the result; the clock ticks now and then. Nothing touches a disk or a
socket.

Targets (--check): 20,000 cycles a second with 1,000 agents, and a cycle with 10,000 agents at most
twice as expensive as with 100.
"""

import statistics
import sys
import time

from _report import finish, make_parser

from spotlightd.fleet.scheduler import Scheduler
from spotlightd.wire.sampling import Request, SamplerSettings

FLEETS = (100, 1_000, 10_000)
CYCLES_PER_SECOND = 20_000
GROWTH = 2.0
TICK_EVERY = 256
REPEATS = 5
SAMPLER = SamplerSettings((1.0, 0.5, 0.0), "flow_cps", 0.7, (0,), 1.0, 32, 128)


def make_requests(count: int) -> list[Request]:
    return [
        Request(f"r{i}", "rollout", 0, f"p{i % 64}", 'a "A"', "A", i, 0, SAMPLER)
        for i in range(count)
    ]


def run_cycles(agents: int, requests: list[Request]) -> float:
    """Return seconds per cycle; every agent holds one lease at any time."""
    scheduler = Scheduler(epoch=1, lease_s=30.0, attempts=4)
    names = [f"agent-{i}" for i in range(agents)]
    for name in names:
        scheduler.join(name, "agent", (), 0.0)
    scheduler.add(requests)
    everybody = set(names).__contains__
    for name in names:
        scheduler.give(name, 1, (0,))
    running = [(g.agent_id, g.entry) for g in scheduler.dispatch(everybody, 0.0)]
    cycles = len(requests) - len(running)
    began = time.perf_counter()
    for number in range(cycles):
        agent_id, entry = running[number % agents]
        request_id, fence, now = entry.request.request_id, entry.fence, number * 1e-3
        scheduler.progress(request_id, fence, now)
        scheduler.progress_committed(request_id, fence, 1, "blob")
        scheduler.progress(request_id, fence, now)
        scheduler.progress_committed(request_id, fence, 2, "blob")
        assert scheduler.result(request_id, fence) == "committed"
        scheduler.settled(request_id)
        scheduler.give(agent_id, 1, (0,))
        (grant,) = scheduler.dispatch(everybody, now)
        running[number % agents] = (grant.agent_id, grant.entry)
        if number % TICK_EVERY == 0:
            scheduler.tick(now)
    seconds = time.perf_counter() - began
    scheduler.validate()
    return seconds / cycles


def measure(cycles: int) -> dict[str, float]:
    """Fleet sizes in turn, several times over, so that a drift of the machine hits all alike."""
    costs: dict[int, list[float]] = {agents: [] for agents in FLEETS}
    for _ in range(REPEATS):
        for agents in FLEETS:
            costs[agents].append(run_cycles(agents, make_requests(agents + cycles)))
    growth = [big / small for big, small in zip(costs[10_000], costs[100], strict=True)]
    figures = {
        f"cycles_per_second_{agents}_agents": 1 / statistics.median(costs[agents])
        for agents in FLEETS
    }
    return figures | {
        "cost_growth_100_to_10000": statistics.median(growth),
        "cost_growth_min": min(growth),
        "cost_growth_max": max(growth),
    }


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--cycles", type=int, default=60_000)
    args = parser.parse_args()
    figures = measure(args.cycles)
    return finish(
        "Scheduler, one thread",
        figures,
        args,
        at_least={"cycles_per_second_1000_agents": CYCLES_PER_SECOND},
        at_most={"cost_growth_100_to_10000": GROWTH},
    )


if __name__ == "__main__":
    sys.exit(main())
