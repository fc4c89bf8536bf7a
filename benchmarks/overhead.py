"""What the fleet costs: the same rollouts through daemon and agent, and by the sampler directly.

    python benchmarks/overhead.py [--json FILE] [--check] [--rollouts 128] [--repeats 3]

Direct: one process samples batches of eight on one thread, then scores them. Fleet: spotlightd
and one `spotlight-agent join` with one worker on one thread; the trainer does not roll out. Both
produce the same trajectories, which is checked before any time is reported. The fleet's scorer is
a process of its own, so on two cores scoring overlaps sampling. Sampling alone is the floor; what
the fleet takes beyond it is step commits, messages, fsync, and the wait for the next leases.

Targets (--check): at most 1.1 times the direct sampling and scoring, and 1.4 times the floor.
"""

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from _report import finish, make_parser

from spotlightd.config import Config, load
from spotlightd.control.client import ControlClient
from spotlightd.demo.processes import Processes
from spotlightd.dit.lora import attach_lora, bind_adapter, read_adapter
from spotlightd.dit.models import load_model
from spotlightd.dit.sampler import Sampler
from spotlightd.dit.trajectory import Trajectory, decode_trajectory
from spotlightd.errors import SpotlightError, UnreachableError
from spotlightd.models import EMBEDDED_DIR
from spotlightd.rewards.scoring import Scorer
from spotlightd.store.store import Store
from spotlightd.wire.sampling import Request

BATCH = 8
PROMPTS = 4
TARGETS = {"fleet_over_direct": 1.1, "fleet_over_sampling_alone": 1.4}
TOLERANCE = 1e-5
TIMEOUT_S = 300.0


def write_config(folder: Path, rollouts: int, iterations: int) -> Path:
    path = folder / "spotlight.toml"
    path.write_text(
        f"""
[run]
iterations = {iterations}
evaluate_prompts = 1
evaluate_seeds = 1
trainer_rolls_out = false
[sampler]
sde_form = "flow_cps"
[planner]
mode = "off"
prompts_per_iteration = {PROMPTS}
group_size = {rollouts // PROMPTS}
[store]
state_dir = "{folder / "state"}"
[control]
socket = "{folder / "c.sock"}"
"""
    )
    return path


def run_fleet(folder: Path, config_file: Path) -> None:
    """Run daemon and agent to the end of the run."""
    processes = Processes(folder)
    try:
        daemon = processes.daemon(config_file)
        client = ControlClient(folder / "c.sock")
        deadline = time.monotonic() + TIMEOUT_S
        token = None
        while token is None and daemon.running and time.monotonic() < deadline:
            try:
                token = client.create_token(ttl_s=600, uses=1, pool="benchmark").token
            except UnreachableError:
                time.sleep(0.05)
        if token is None:
            raise SpotlightError(f"spotlightd does not come up: see {daemon.log}")
        processes.agent("vm", token)
        if daemon.process.wait(TIMEOUT_S) != 0:
            raise SpotlightError(f"spotlightd failed: see {daemon.log}")
    finally:
        processes.stop_all()


def run_direct(
    requests: list[Request], sampler: Sampler, scorer: Scorer
) -> tuple[list[Trajectory], float, float]:
    """Return trajectories, and seconds of sampling and of scoring."""
    trajectories: list[Trajectory] = []
    sampling = scoring = 0.0
    for start in range(0, len(requests), BATCH):
        began = time.monotonic()
        running = [sampler.start(request) for request in requests[start : start + BATCH]]
        while not running[0].done:
            sampler.advance(running)
        images = sampler.decode(running)
        sampled = time.monotonic()
        scorer.score(images, [t.request.target for t in running])
        sampling, scoring = sampling + sampled - began, scoring + time.monotonic() - sampled
        trajectories += running
    return trajectories, sampling, scoring


def largest_difference(store: Store, trajectories: list[Trajectory]) -> float:
    """Return the largest difference of any final latent between fleet and direct, relative to
    values above 1.
    """
    results = {result.request_id: result for result in store.results()}
    worst = 0.0
    for trajectory in trajectories:
        blob = results[trajectory.request.request_id].trajectory
        if blob is None:
            raise SpotlightError(f"{trajectory.request.request_id} kept no trajectory")
        shape = tuple(trajectory.latents_LD.shape)
        fleet = decode_trajectory(store.blobs.get(blob), trajectory.request, (shape[0], shape[1]))
        scale = trajectory.latents_LD.abs().clamp(min=1)
        difference = (fleet.latents_LD - trajectory.latents_LD).abs() / scale
        worst = max(worst, float(difference.max()))
    return worst


def measure(rollouts: int, repeats: int) -> dict[str, float]:
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="spotlight-overhead-"))
    try:
        config_file = write_config(folder, rollouts, repeats)
        config, _ = load(config_file, environ={})
        run_fleet(folder, config_file)
        return compare(folder, config, repeats)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def compare(folder: Path, config: Config, repeats: int) -> dict[str, float]:
    store = Store(folder / "state")
    try:
        # The last iteration's trajectories are still kept.
        last = repeats - 1
        requests = [r.request for r in store.requests([last]) if r.request.kind == "rollout"]
        metrics = store.metrics()
        fleet = [metrics[i]["phase_s.rollout"] for i in range(repeats)]
        model = load_model(EMBEDDED_DIR)
        attach_lora(model, config.trainer.lora_rank, config.trainer.lora_alpha)
        path = folder / "state/weights" / str(last) / "adapter.safetensors"
        bind_adapter(model, read_adapter(path), str(path))
        sampler = Sampler(model)
        scorer = Scorer((config.rewards.train, *config.rewards.report))
        run_direct(requests[:BATCH], sampler, scorer)
        direct = [run_direct(requests, sampler, scorer) for _ in range(repeats)]
        difference = largest_difference(store, direct[-1][0])
    finally:
        store.close()
    if difference > TOLERANCE:
        raise SpotlightError(
            f"fleet and sampler disagree by {difference:g} (at most {TOLERANCE:g}): no time is "
            f"reported for different work"
        )
    sampling = statistics.median(row[1] for row in direct)
    both = statistics.median(row[1] + row[2] for row in direct)
    return {
        "rollouts": float(len(requests)),
        "direct_sampling_s": sampling,
        "direct_sampling_and_scoring_s": both,
        "fleet_s": statistics.median(fleet),
        "fleet_min_s": min(fleet),
        "fleet_max_s": max(fleet),
        "fleet_over_direct": statistics.median(fleet) / both,
        "fleet_over_direct_min": min(fleet) / both,
        "fleet_over_direct_max": max(fleet) / both,
        "fleet_over_sampling_alone": statistics.median(fleet) / sampling,
        "largest_latent_difference": difference,
    }


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--rollouts", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    try:
        figures = measure(args.rollouts, args.repeats)
    except SpotlightError as error:
        print(f"overhead: {error}", file=sys.stderr)
        return int(error.exit_code)
    title = f"{figures['rollouts']:.0f} rollouts, 10 steps, one worker, one thread"
    return finish(title, figures, args, at_least=None, at_most=TARGETS)


if __name__ == "__main__":
    sys.exit(main())
