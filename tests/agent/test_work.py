"""The way of a lease through the agent, with workers and a daemon that only write down."""

import time

import pytest

from agent.work import DECIDE_S, Work
from agent.workers import WorkerSlot
from spotlightd.wire import messages as m
from spotlightd.wire import worker as w
from spotlightd.wire.sampling import Request, SamplerSettings

SETTINGS = SamplerSettings((1.0, 0.5, 0.0), "flow_cps", 0.7, (0,), 1.0, 32, 128)


class Slot(WorkerSlot):
    def send(self, message, frames=()):
        self.told = [*getattr(self, "told", []), message]


class TwoWorkers:
    """Both can sample version 0."""

    def __init__(self):
        self.slots = [Slot(0), Slot(1)]
        for slot in self.slots:
            slot.child = object()

    def least_loaded(self, version):
        return min(self.slots, key=lambda slot: len(slot.held)) if version == 0 else None


class Scene:
    def __init__(self):
        self.sent = []
        self.work = Work(8, ("ocr",), lambda message, frames: self.sent.append((message, frames)))
        self.work.workers = TwoWorkers()
        self.slots = self.work.workers.slots

    def grant(self, name, fence, kind="rollout", version=0, state=None):
        request = Request(name, kind, 0, "p", 'a "B"', "B", 1, version, SETTINGS)
        lease = m.Lease(request, fence, 60.0, 1 if state else 0)
        specs = (m.FrameSpec("trajectory", len(state)),) if state else ()
        self.work.granted(m.Grant((lease,), specs), [state] if state else [])

    def said(self, slot, message, frames=()):
        self.work.worker_said(self.slots[slot], message, list(frames))

    def finished(self, slot, name, fence):
        specs = (m.FrameSpec("trajectory", 2), m.FrameSpec("image", 2))
        self.said(slot, w.Finished(name, fence, 1.5, 0, specs), [b"tr", b"im"])

    def scored(self, name, scores=None, error=""):
        self.work._scored(w.Scores((w.Scored(name, scores or {}, "B", error),), 0.1))

    def messages(self):
        return [message for message, _ in self.sent]


@pytest.fixture
def scene():
    return Scene()


def test_leases_go_to_the_least_loaded_worker(scene):
    for index, name in enumerate("abcd"):
        scene.grant(name, index + 1)
    assert [len(slot.held) for slot in scene.slots] == [2, 2]


def test_a_resumed_lease_takes_its_state_along(scene):
    scene.grant("a", 1, state=b"state")
    (sample,) = scene.slots[0].told
    assert sample.lease.resume_step == 1 and sample.frames[0].size == 5


def test_a_version_that_no_worker_has_is_a_failure_with_a_reason(scene):
    scene.grant("a", 1, version=7)
    ((failed, _),) = scene.sent
    assert (failed.request_id, failed.fence, failed.final) == ("a", 1, False)
    assert "version" in failed.reason


@pytest.mark.parametrize(("kind", "frames"), [("rollout", 2), ("evaluate", 2), ("explore", 0)])
def test_a_result_is_sent_once_it_is_scored_and_kept_until_its_ack(scene, kind, frames):
    scene.grant("a", 1, kind)
    scene.finished(0, "a", 1)
    assert not scene.sent and not scene.work.settled
    scene.scored("a", {"ocr": 0.5})
    ((result, sent),) = scene.sent
    assert (result.scores, result.gpu_s, len(sent)) == ({"ocr": 0.5}, 1.5, frames)
    assert len(result.frames) == frames
    assert not scene.work.settled
    scene.work.resend(everything=True)
    assert scene.messages() == [result, result]
    scene.work.acked(m.Ack("a", 1, "result", "committed"))
    assert scene.work.settled
    scene.work.resend(everything=True)
    assert len(scene.sent) == 2


def test_a_scorer_failure_is_an_error_and_no_zero(scene):
    scene.grant("a", 1)
    scene.finished(0, "a", 1)
    scene.scored("a", error="image of 9 x 9 is too large")
    ((failed, _),) = scene.sent
    assert isinstance(failed, m.Failed) and "too large" in failed.reason
    assert failed.gpu_s == 1.5


def test_what_is_withdrawn_is_cancelled_and_handed_back_by_the_worker(scene):
    scene.grant("a", 1)
    held = (m.HeldLease("a", 1),)
    scene.work.withdrawn(held)
    assert scene.slots[0].told[-1] == w.CancelLeases(held)
    assert not scene.sent
    scene.said(0, w.Cancelled(held, 2.5))
    assert scene.messages() == [m.HandBack(held, 2.5)]
    assert not scene.slots[0].held and scene.work.settled


def test_what_is_withdrawn_while_it_waits_for_its_score_is_never_reported(scene):
    scene.grant("a", 1)
    scene.finished(0, "a", 1)
    scene.work.withdrawn((m.HeldLease("a", 1),))
    scene.scored("a", {"ocr": 0.5})
    assert scene.messages() == [m.HandBack((m.HeldLease("a", 1),), 0.0)]
    assert scene.work.settled


def test_a_worker_that_finishes_what_was_withdrawn_reports_only_its_time(scene):
    scene.grant("a", 1)
    scene.work.withdrawn((m.HeldLease("a", 1),))
    scene.finished(0, "a", 1)
    assert scene.messages() == [m.HandBack((), 1.5)]


def test_an_older_fence_neither_finishes_nor_commits_a_newer_lease(scene):
    scene.grant("a", 1)
    scene.grant("a", 2)
    state = w.StepState("a", 1, 1, 0.5, (m.FrameSpec("trajectory", 2),))
    scene.said(0, state, [b"st"])
    scene.finished(0, "a", 1)
    scene.scored("a", {"ocr": 0.5})
    assert scene.messages() == [m.HandBack((), 1.5)]
    assert scene.work.pull.held["a"].fence == 2


def test_notice_commits_states_and_waits_for_their_acks(scene):
    scene.grant("a", 1)
    scene.grant("b", 2)
    scene.work.flush()
    assert [slot.told[-1] for slot in scene.slots] == [w.Flush(stop=True)] * 2
    assert scene.work.pull.take_credit() == 0
    scene.said(0, w.StepState("a", 1, 1, 0.5, (m.FrameSpec("trajectory", 2),)), [b"st"])
    scene.said(0, w.Flushed((m.HeldLease("a", 1),), 0.0))
    scene.work.acked(m.Ack("a", 1, "progress", "committed"))
    assert not scene.work.settled, "the other worker has not answered"
    scene.said(1, w.Flushed((m.HeldLease("b", 2),), 0.0))
    assert scene.work.settled
    scene.work.hand_back_rest()
    progress, back = scene.messages()
    assert (progress.request_id, progress.step_index) == ("a", 1)
    assert back.held == (m.HeldLease("a", 1), m.HeldLease("b", 2))


def test_a_dead_workers_leases_go_back_and_the_others_stay(scene):
    scene.grant("a", 1)
    scene.grant("b", 2)
    scene.work.flush()
    scene.work.worker_died(scene.slots[0])
    assert scene.messages() == [m.HandBack((m.HeldLease("a", 1),), 0.0)]
    assert list(scene.work.pull.held) == ["b"]
    scene.said(1, w.Flushed((m.HeldLease("b", 2),), 0.0))
    assert scene.work.settled, "nobody waits for a dead worker's flush"


def test_a_broken_lease_fails_alone(scene):
    scene.grant("a", 1)
    scene.grant("b", 2)
    scene.said(0, w.Broken("a", 1, "latents are not finite", 0.5))
    ((failed, _),) = scene.sent
    assert failed.reason == "latents are not finite" and not failed.final
    assert list(scene.work.pull.held) == ["b"]


def committed(scene, name, fence, step):
    specs = (m.FrameSpec("trajectory", 2),)
    scene.said(0, w.StepState(name, fence, step, 0.5, specs), [b"tr"])


def test_an_older_steps_ack_does_not_pass_for_the_newest_ones(scene):
    scene.grant("a", 1)
    for step in (1, 2):
        committed(scene, "a", 1, step)
    ack = m.Ack("a", 1, "progress", "committed")
    scene.work.acked(ack)
    assert not scene.work.settled
    scene.work.acked(ack)
    assert scene.work.settled


def test_a_new_session_is_told_the_newest_step_again(scene):
    """An agent that leaves upon a notice commits once: the daemon may restart just then."""
    scene.grant("a", 1)
    scene.grant("b", 2)
    for step in (1, 2):
        committed(scene, "a", 1, step)
    committed(scene, "b", 2, 1)
    scene.work.give_up(["b"])
    before = len(scene.sent)
    scene.work.resend(everything=True)
    (again,) = scene.messages()[before:]
    assert (again.request_id, again.fence, again.step_index, again.gpu_s) == ("a", 1, 2, 0.0)
    assert not scene.work.settled
    scene.work.acked(m.Ack("a", 1, "progress", "stale"))
    assert scene.work.settled


def test_a_grant_that_crosses_a_notice_is_handed_back_and_no_failure(scene):
    """A failure would make the daemon forget the steps that others had committed."""
    scene.work.flush()
    scene.grant("a", 1, state=b"state")
    assert scene.messages() == [m.HandBack((m.HeldLease("a", 1),), 0.0)]
    assert not hasattr(scene.slots[0], "told") and scene.work.settled


class Deciding:
    """Groups that are asked whether to finish, and leave the answer to the test."""

    def __init__(self):
        self.asked, self.flushed = [], 0

    def begin_race(self, deadline_s):
        self.asked.append(deadline_s)

    def flush(self):
        self.flushed += 1

    def fed(self):
        pass

    def worker_said(self, slot, message, frames):
        pass


def told(scene):
    return [getattr(slot, "told", [])[-1:] for slot in scene.slots]


def test_a_notice_that_can_be_beaten_flushes_nothing_before_its_time(scene):
    scene.work.groups = groups = Deciding()
    scene.grant("a", 1)
    scene.work.leave(100.0)
    assert groups.asked == [100.0] and not scene.work.settled
    scene.work.race(20.0)
    scene.work.tick(time.monotonic() + 79.0)
    assert not groups.flushed and w.Flush(stop=True) not in scene.slots[0].told
    assert scene.work.pull.take_credit() == 0, "it asks for nothing more"
    scene.finished(0, "a", 1)
    scene.scored("a", {"ocr": 0.5})
    scene.work.acked(m.Ack("a", 1, "result", "committed"))
    assert scene.work.settled, "finished and durable: it may leave long before the deadline"


def test_a_lost_race_is_committed_in_time(scene):
    scene.work.groups = groups = Deciding()
    scene.grant("a", 1)
    scene.work.leave(100.0)
    scene.work.race(20.0)
    scene.work.tick(time.monotonic() + 80.0)
    assert groups.flushed == 1 and scene.slots[0].told[-1] == w.Flush(stop=True)
    scene.work.race(12.0)
    scene.work.tick(time.monotonic() + 88.0)
    assert groups.flushed == 1 and told(scene)[0] == [w.Flush(stop=True)]


def test_a_nearer_deadline_shortens_the_race(scene):
    scene.work.groups = groups = Deciding()
    scene.grant("a", 1)
    scene.work.leave(100.0)
    scene.work.hurry(time.monotonic() + 40.0)
    # The decision that was made for the later deadline does not put the nearer one off.
    scene.work.race(15.0)
    scene.work.tick(time.monotonic() + 24.0)
    assert groups.flushed == 0
    scene.work.tick(time.monotonic() + 25.0)
    assert groups.flushed == 1


def test_no_decision_is_a_commit(scene):
    scene.work.groups = groups = Deciding()
    scene.grant("a", 1)
    scene.work.leave(100.0)
    scene.work.tick(time.monotonic() + DECIDE_S)
    assert groups.flushed == 1
