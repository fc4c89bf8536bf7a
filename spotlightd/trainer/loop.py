"""The trainer's loop: read messages, then either train or take one denoising step, and again.

Train --> hand back --> update --> checkpoint --> adapter file --> Trained
Grant --> step, step, ... --> scorer --> Result --> Ack
"""

import logging
import time

import zmq

from spotlightd.errors import SpotlightError
from spotlightd.trainer.batch import DamagedError
from spotlightd.trainer.crew import Crew
from spotlightd.trainer.link import Pace, TrainerLink
from spotlightd.trainer.ratio_check import Judge
from spotlightd.trainer.rollout import Rollouts
from spotlightd.trainer.settings import TrainerSettings
from spotlightd.trainer.update import UpdateReport
from spotlightd.wire import messages as m
from spotlightd.wire import training
from spotlightd.wire.codec import Buffer, WireError
from spotlightd.wire.sampling import AVERAGES_FROM

logger = logging.getLogger(__name__)

WAIT_MS = 100
PROGRESS_PER_SECOND = 4.0
HELLO_PATIENCE_S = 2.0


class TrainerLoop:
    """One trainer process after its model is loaded.

    Args:
        version: the policy version that the model holds, checkpointed and written to its
            adapter file.
    """

    def __init__(
        self, settings: TrainerSettings, crew: Crew, link: TrainerLink, version: int
    ) -> None:
        config = settings.config
        self.version = version
        self.stopping = False
        """Set by SIGTERM."""
        self._config = config
        self._crew = crew
        self._policy = crew.policy
        self._judge = Judge(crew.policy.clip_range)
        self._link = link
        self._rollouts = Rollouts(
            crew.model, config.trainer.max_batch, config.rewards, self._link.send, crew.select
        )
        self._train: training.Train | None = None
        self._trained: training.Trained | None = None
        """The newest update, to be told again."""
        self._hello_at = 0.0
        self._poller = zmq.Poller()
        self._poller.register(link.socket, zmq.POLLIN)
        self._poller.register(self._rollouts.scorer.fileno(), zmq.POLLIN)

    def run(self) -> None:
        """Work until told to stop."""
        self._hello()
        try:
            while self._read(0 if self._rollouts.active or self._train else WAIT_MS):
                if self._train is not None:
                    message, self._train = self._train, None
                    self._run_update(message)
                elif self._rollouts.active:
                    self._rollouts.step()
                    self._give()
                self._rollouts.resend()
        finally:
            self._rollouts.close()
        self._crew.leave()

    # --- messages -----------------------------------------------------------------------------

    def _hello(self) -> None:
        self._hello_at = time.monotonic()
        held = self._rollouts.hello()
        protocol = (m.PROTOCOL_MAJOR, m.PROTOCOL_MINOR)
        self._link.send(m.Hello(protocol, "trainer", "trainer", 1, 0, held))

    def _ready(self) -> None:
        tokens, channels = self._crew.actions.latent_shape
        self._link.send(
            training.TrainerReady(
                self.version,
                self._policy.model.sigmas(self._config.sampler.num_steps, tokens),
                tokens * channels,
                self._policy.clip_range,
            )
        )
        self._rollouts.resend(everything=True)
        self._give()

    def _read(self, wait_ms: int) -> bool:
        """Handle what has arrived; return whether to go on."""
        ready = dict(self._poller.poll(wait_ms))
        if self._rollouts.scorer.fileno() in ready:
            self._rollouts.scored()
            self._give()
        while True:
            try:
                received = self._link.receive()
            except WireError as error:
                logger.warning("dropped a message of the daemon: %s", error)
                continue
            if received is None:
                return not self.stopping
            self._handle(*received)

    def _handle(self, message: m.Message, frames: list[Buffer]) -> None:
        match message:
            case m.Welcome():
                self._ready()
            case m.HelloAgain():
                # Every message that waited is answered so: one Hello is enough for a while.
                if time.monotonic() - self._hello_at > HELLO_PATIENCE_S:
                    self._hello()
            case m.Grant():
                self._rollouts.granted(message, frames, self._versions)
            case m.Ack():
                self._rollouts.pull.acked(message.request_id, message.fence)
                self._give()
            case m.Withdraw():
                self._rollouts.withdrawn(message.held)
                self._give()
            case training.Train():
                self._train = message
            case m.Stop() | m.Drain():
                self.stopping = True
            case m.Refused():
                logger.error("the daemon refuses this trainer: %s", message.reason)
                self.stopping = True
            case _:
                logger.debug("nothing to do for %s", type(message).__name__)

    def _give(self) -> None:
        if self._config.run.trainer_rolls_out:
            self._rollouts.give(self._versions)

    @property
    def _versions(self) -> tuple[int, ...]:
        """What this trainer samples with: its weights, and their average where there is one."""
        averages = (AVERAGES_FROM + self.version,) if self._policy.ema else ()
        return (self.version, *averages)

    # --- training -----------------------------------------------------------------------------

    def _run_update(self, message: training.Train) -> None:
        if message.policy_version != self.version:
            self._answer_old(message)
            return
        self._rollouts.hand_back_all()
        began = time.monotonic()
        try:
            report = self._update(message)
        except DamagedError as error:
            logger.error("%s", error)
            self._link.send(
                training.Damaged(message.iteration, error.request_ids, str(error)[:2000])
            )
            self._give()
            return
        if self.stopping:
            return
        self.version += 1
        self._crew.publish(self.version)
        seconds = time.monotonic() - began
        logger.info(
            "version %d trained in %.2f s: %s",
            self.version,
            seconds,
            {name: float(f"{value:.3g}") for name, value in report.metrics.items()},
        )
        self._trained = training.Trained(
            message.iteration,
            self.version,
            report.metrics,
            report.differences,
            self._policy.clip_range,
            seconds,
        )
        self._link.send(self._trained)
        self._give()

    def _answer_old(self, message: training.Train) -> None:
        """The daemon asks for another update than the one that is next: it may have asked twice,
        or missed the answer. Raises SpotlightError where only a fresh start brings both together.
        """
        done = self._trained
        if done is None or done.policy_version != message.policy_version + 1:
            raise SpotlightError(
                f"asked to train version {message.policy_version}, holding {self.version}: "
                f"starting again from the version that the daemon holds"
            )
        logger.info("version %d is trained already: saying so again", done.policy_version)
        self._link.send(done)

    def _update(self, message: training.Train) -> UpdateReport:
        batch = self._crew.actions.load(message)
        if batch is None:
            logger.warning("no group has any spread: this version equals the one before")
            return UpdateReport({"zero_std_groups": float(len(message.groups))}, ())
        pace = Pace(PROGRESS_PER_SECOND)

        def progress(fraction: float) -> None:
            if pace.due(final=fraction >= 1):
                self._link.send(training.TrainProgress(message.iteration, min(fraction, 1.0)))

        return self._crew.update(message, batch, progress, self._judge.checked)
