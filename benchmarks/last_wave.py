"""How much sooner a last wave ends when the degree policy may share images and workers.

    python benchmarks/last_wave.py [--json FILE] [--check] [--steps 150] [--repeats 3]
                                   [--height 128] [--width 512]

Virtual: ten equal images on eight workers with the published speedups (1, 1.73, 2.84, 3.65 at 1, 2,
4, 8), asked again whenever an image is done; beside what degree 1 alone takes, the bound that no
schedule can beat (all workers at full efficiency), and the best without sharing, by brute force
over waves. Real: three images on two of the agent's workers, with its groups and without, both
from the grant to the last result; trajectories are the same within 1e-5. The speedup that the agent
measured of degree 2 stands beside it, 0 where it was never tried for long enough.

Targets (--check): virtual, within 3 % of the bound and at most 0.68 of degree 1; real, sooner.
"""

import asyncio
import logging
import statistics
import sys
import time

from _report import finish, make_parser
from _vm import Vm, make_model, make_request, preload
from regroup import TOLERANCE

from agent.speeds import Size
from spotlightd.dit.degrees import PUBLIC_CURVE, Curve, plan, single
from spotlightd.wire import worker as w

IMAGES, WORKERS = 10, 8
WARM_STEPS = 20
TARGETS = {"virtual_over_bound": 1.03, "virtual_over_degree_1": 0.68, "real_over_degree_1": 1.0}


def follow(images: int, workers: int, curve: Curve) -> float:
    """Return the time of a wave of images that need 1 each."""
    left, now = [1.0] * images, 0.0
    while left:
        rates = [0.0] * len(left)
        for group in plan(left, workers, curve).groups:
            for image in group.images:
                rates[image] = curve.at(group.degree) / len(group.images)
        time_ = min(steps / rate for steps, rate in zip(left, rates, strict=True))
        now += time_
        left = [s - r * time_ for s, r in zip(left, rates, strict=True) if s - r * time_ > 1e-9]
    return now


def best_waves(images: int, workers: int, curve: Curve) -> float:
    """Return the least time where waves of one degree follow one another, by trying all."""
    if images == 0:
        return 0.0
    return min(
        1 / curve.at(degree) + best_waves(max(images - workers // degree, 0), workers, curve)
        for degree in curve.degrees(workers)
    )


async def wave(vm: Vm, seeds: range, steps: int, size: Size, shared: bool) -> float:
    """Return the seconds from the grant to the last result."""
    height, width = size
    work = vm.work
    # The daemon has nothing more: credit stays unanswered, which is when groups may form.
    work.pull.promised = 1000 if shared else 0
    began = time.monotonic()
    vm.grant([make_request(seed, steps, height=height, width=width) for seed in seeds])
    await vm.until(lambda: all(f"r-{seed}" in vm.frames for seed in seeds))
    took = time.monotonic() - began
    await vm.until(vm.all_ready)
    return took


async def real(steps: int, repeats: int, size: Size) -> dict[str, float]:
    preload()
    ratios, times = [], {True: [], False: []}
    async with Vm(2) as vm:
        await wave(vm, range(2), WARM_STEPS, size, shared=False)
        for repeat in range(repeats):
            for shared in (False, True):
                first = 100 * (repeat + 1) + 10 * shared
                times[shared].append(await wave(vm, range(first, first + 3), steps, size, shared))
            ratios.append(times[True][-1] / times[False][-1])
        views = {e.message.generation for e in vm.events if isinstance(e.message, w.Entered)}
        worst = largest_difference(vm, steps, size)
        measured = vm.groups.speeds.measured(size, 2)
    return {
        "real_degree_2_speedup": dict(measured.speedups).get(2, 0.0) if measured else 0.0,
        "real_degree_1_s": statistics.median(times[False]),
        "real_shared_s": statistics.median(times[True]),
        "real_over_degree_1": statistics.median(ratios),
        "real_over_degree_1_min": min(ratios),
        "real_over_degree_1_max": max(ratios),
        "real_views": float(len(views)),
        "real_largest_difference": worst,
    }


def largest_difference(vm: Vm, steps: int, size: Size) -> float:
    import torch

    from spotlightd.dit.sampler import Sampler
    from spotlightd.dit.trajectory import decode_trajectory

    torch.set_num_threads(1)
    sampler, (height, width) = Sampler(make_model(torch)), size
    worst = 0.0
    for request_id, frame in vm.frames.items():
        seed = int(request_id.partition("-")[2])
        request = make_request(
            seed, steps if seed >= 100 else WARM_STEPS, height=height, width=width
        )
        got = decode_trajectory(frame, request, sampler.model.latent_shape(height, width))
        alone = sampler.start(request)
        while not alone.done:
            sampler.advance([alone])
        worst = max(worst, float((got.latents_LD - alone.latents_LD).abs().max()))
    if worst > TOLERANCE:
        raise SystemExit(f"last_wave: trajectories differ by {worst:g}: no time is reported")
    return worst


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--height", type=int, default=128, help="of the real images, in pixels")
    parser.add_argument("--width", type=int, default=512)
    args = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    alone = single([1.0] * IMAGES, WORKERS, PUBLIC_CURVE)
    virtual = follow(IMAGES, WORKERS, PUBLIC_CURVE)
    figures = {
        "virtual_makespan": virtual,
        "virtual_degree_1": alone,
        "virtual_bound": IMAGES / WORKERS,
        "virtual_best_waves": best_waves(IMAGES, WORKERS, PUBLIC_CURVE),
        "virtual_over_degree_1": virtual / alone,
        "virtual_over_bound": virtual * WORKERS / IMAGES,
    }
    figures |= asyncio.run(real(args.steps, args.repeats, (args.height, args.width)))
    return finish(
        "a last wave, of 10 images on 8 workers and of 3 on 2", figures, args, at_most=TARGETS
    )


if __name__ == "__main__":
    sys.exit(main())
