"""A run ends when a held-out reward falls while the training reward rises, and then only."""

import pytest

from spotlightd.planner.decisions import AddRequests, PhaseBegins
from spotlightd.planner.early_stop import Evaluated, parted
from tests.planner.test_cycle import CommittedResult, make_cycle, of, trained


def curves(held_out, training):
    pairs = zip(held_out, training, strict=True)
    return [Evaluated(i, h, t) for i, (h, t) in enumerate(pairs)]


@pytest.mark.parametrize(
    ("held_out", "training", "stops"),
    [
        ([0.5, 0.6, 0.5, 0.4], [0.3, 0.4, 0.6, 0.8], True),
        ([0.5, 0.6, 0.5], [0.3, 0.4, 0.6], False),  # once is noise
        ([0.5, 0.6, 0.5, 0.4], [0.3, 0.4, 0.35, 0.3], False),  # both fall: not hacking
        ([0.5, 0.6, 0.5, 0.4], [0.3, 0.4, 0.35, 0.8], False),
        ([0.4, 0.5, 0.6, 0.7], [0.3, 0.4, 0.6, 0.8], False),
        ([0.5, 0.6, 0.5, 0.7], [0.3, 0.4, 0.6, 0.8], False),  # a new best
        ([0.5], [0.3], False),
        ([], [], False),
    ],
)
def test_the_curves_must_part_for_two_evaluations(held_out, training, stops):
    reason = parted(curves(held_out, training), "ocr_ctc", 2)
    assert bool(reason) == stops
    if stops:
        assert "below its best (0.6 at iteration 1)" in reason
        assert "rose from 0.4 to 0.8" in reason


def play(cycle, until):
    """Play iterations whose training reward rises and whose held-out reward falls."""
    decisions = cycle.trainer_ready(0)
    for _ in range(until):
        while cycle.state.phase in ("evaluate", "rollout"):
            (add,) = of(decisions, AddRequests)
            for request in add.requests:
                k = cycle.state.iteration
                ctc = 0.9 - 0.1 * k if request.kind == "evaluate" else 0.5
                scores = {"ocr": 0.1 * k + request.seed % 7 / 100, "ocr_ctc": ctc, "grain": 1.0}
                blob = "ab" * 32 if request.kind == "rollout" else None
                decisions = cycle.committed(
                    CommittedResult(request.request_id, scores, blob, "agent-1")
                )
        if cycle.state.phase == "finished":
            return decisions
        decisions = cycle.trained(trained(cycle.state.iteration))
    return decisions


FLAGS = {"run.iterations": "20", "run.evaluate_every": "1", "planner.mode": "off"}


def test_a_hacked_run_ends_early_says_why_and_stays_ended():
    cycle = make_cycle(**FLAGS, **{"run.early_stop": "2"})
    (begins,) = of(play(cycle, 20), PhaseBegins)
    assert begins.phase == "finished" and "it is being hacked" in begins.reason
    # Evaluations 1, 2 and 3 have training before them; 1 is the best.
    assert (cycle.state.iteration, cycle.complete) == (3, True)
    assert cycle.trainer_ready(3) == []


def test_without_early_stop_the_same_run_goes_on():
    cycle = make_cycle(**FLAGS)
    play(cycle, 6)
    assert cycle.state.iteration == 6 and not cycle.complete
