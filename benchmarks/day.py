"""The decision code against a large fleet for one virtual day.

    python benchmarks/day.py --trace TRACE.csv [--json FILE] [--check] [--agents 10000] [--hours 24]

Planner, scheduler, membership, ledger and iteration machine are the daemon's own, as `spotlightd
simulate` runs them; GPUs and training are modelled, and weights arrive at once: the swarm has a
benchmark of its own (`weights_fleet.py`). VMs come and go with a
published trace, in its bursts. So that a cost can be compared between fleets, work grows with the
fleet: one group of twenty for twenty agents, a reserved GPU for twenty agents. A trajectory takes a
GPU twenty minutes, as one of a video does; it is committed every ten denoising steps. Training
takes forty, in which spot GPUs explore. Agents beat every fifteen seconds, each beat through
membership and ledger.

An event is a timer of the virtual clock: a commit, a result, a lease's dispatch, a VM's boot or
loss, a report of the trainer. Beats are on top of these: their cost counts, they do not.

Targets (--check), on one core: a day of 10,000 agents in 10 minutes, in 2 GB, and an event as cheap
as with 100 agents within a factor of two.
"""

import dataclasses
import resource
import sys
import time
from pathlib import Path

from _report import finish, make_parser

from spotlightd.config import Config
from spotlightd.simulate.assumptions import Assumptions, load_assumptions
from spotlightd.simulate.command import configure
from spotlightd.simulate.run import Simulation
from spotlightd.simulate.traces import Trace, load_trace
from spotlightd.simulate.variants import find_variant

CONFIG = Path(__file__).parents[1] / "configs/qwen-image-ocr.toml"
VARIANT = dataclasses.replace(find_variant("spotlight"), peers=False)
SMALL = 100
PER_AGENT = 20
"""Agents for a group, and for a reserved GPU."""
FLEET = {
    "run.iterations": "100000",
    "run.evaluate_prompts": "2",
    "run.evaluate_every": "0",
    "planner.group_size": str(PER_AGENT),
    "planner.train_size": "0",
    "planner.max_candidates": "64",
    "sampler.num_steps": "40",
    "fleet.commit_every": "10",
    "fleet.heartbeat_s": "15",
    "fleet.suspect_s": "45",
    "fleet.lost_s": "90",
    "fleet.lease_s": "3600",
}
TELL_S = 2 * 3600.0
TARGET_S, TARGET_GB, TARGET_GROWTH = 600.0, 2.0, 2.0


def scaled(agents: int) -> tuple[Config, Assumptions]:
    """Return a configuration and assumptions whose work grows with the fleet."""
    groups = max(agents // PER_AGENT, 1)
    given = load_assumptions(
        denoise={"timings": [[512, 50, 1500.0], [1024, 50, 7500.0]]},
        # Two GPU-minutes of training an image, beside what 512 images of ten such steps take.
        train={"step_s": 512 / 4 * (10 * 30.0 + 120.0)},
        fleet={
            "reserved_gpus": groups,
            "spot_vms": agents,
            "gpus_per_vm": 1,
            "slots_per_gpu": 1,
        },
        transfer={"base_gb": 1e-6, "adapter_gb": 1e-6},
        tasks={"ocr": {"iterations": 100000}},
    )
    changes = FLEET | {"planner.prompts_per_iteration": str(groups)}
    return configure(CONFIG, changes, VARIANT), given


def play(agents: int, hours: float, trace: Trace) -> dict[str, float]:
    config, given = scaled(agents)
    began, told = time.process_time(), 0
    simulation = Simulation(config, given, VARIANT, trace, 1, hours * 3600)

    def watch(now: float) -> None:
        nonlocal told
        if now >= (told + 1) * TELL_S:
            told += 1
            seconds, events = time.process_time() - began, simulation.clock.events
            text = f"{agents} agents: {now / 3600:.0f} h in {seconds:.0f} s, {events} events"
            print(text, file=sys.stderr, flush=True)

    found = simulation.run(watch)
    seconds = time.process_time() - began
    simulation.daemon.validate()
    return {
        "cpu_s": seconds,
        "events": float(found.events),
        "us_per_event": seconds / found.events * 1e6,
        "iterations": float(found.iterations),
        "explored": float(found.explored),
        "preemptions": float(found.preemptions),
        "rollouts_resumed": float(found.resumed),
        "hours_played": found.time_s / 3600,
        "peak_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--trace", type=Path, help="of spot VMs (docs/simulation.md)")
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--hours", type=float, default=24.0)
    args = parser.parse_args()
    if args.trace is None:
        print("day: no --trace is given: there is nothing to follow")
        return 69
    trace = load_trace(args.trace)
    figures: dict[str, float] = {}
    for agents in dict.fromkeys((SMALL, args.agents)):
        found = play(agents, args.hours, trace)
        figures |= {f"{name}_{agents}_agents": value for name, value in found.items()}
    growth = figures[f"us_per_event_{args.agents}_agents"]
    figures[f"cost_growth_{SMALL}_to_{args.agents}"] = growth / figures["us_per_event_100_agents"]
    return finish(
        f"{args.hours:g} virtual hours of the decision code, one core",
        figures,
        args,
        at_most={
            f"cpu_s_{args.agents}_agents": TARGET_S,
            f"peak_memory_gb_{args.agents}_agents": TARGET_GB,
            f"cost_growth_{SMALL}_to_{args.agents}": TARGET_GROWTH,
        },
    )


if __name__ == "__main__":
    sys.exit(main())
