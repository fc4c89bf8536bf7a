"""The trainer's end of the fleet link: a blocking DEALER, read between denoising steps."""

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import zmq

from spotlightd.errors import InputError
from spotlightd.trainer.settings import TrainerSettings
from spotlightd.wire.codec import LINK, Buffer
from spotlightd.wire.messages import Message

FLUSH_S = 2.0


class TrainerLink:
    """Connected to the daemon for the life of the process."""

    def __init__(self, settings: TrainerSettings) -> None:
        public, secret = _read_keys(Path(settings.key_file))
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.curve_serverkey = settings.server_key.encode()
        self.socket.curve_publickey = public.encode()
        self.socket.curve_secretkey = secret.encode()
        for option, value in (
            (zmq.LINGER, int(FLUSH_S * 1000)),
            (zmq.SNDHWM, 1000),
            (zmq.RCVHWM, 1000),
            (zmq.HANDSHAKE_IVL, 5000),
            (zmq.RECONNECT_IVL, 100),
            (zmq.RECONNECT_IVL_MAX, 2000),
        ):
            self.socket.setsockopt(option, value)
        self.socket.connect(settings.link_endpoint)

    def send(self, message: Message, frames: Sequence[Buffer] = ()) -> None:
        self.socket.send_multipart(LINK.encode(message, frames))

    def receive(self) -> tuple[Message, list[Buffer]] | None:
        """Return the next message that waits, or None. Raises WireError for what is none."""
        try:
            parts = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        return LINK.decode([part.buffer for part in parts])

    def close(self) -> None:
        self.socket.close()
        self._context.term()


class Pace:
    """Lets through at most `per_second` calls a second, and always the last one."""

    def __init__(self, per_second: float) -> None:
        self._interval = 1 / per_second
        self._last = 0.0

    def due(self, final: bool = False) -> bool:
        now = time.monotonic()
        if final or now - self._last >= self._interval:
            self._last = now
            return True
        return False


def _read_keys(path: Path) -> tuple[str, str]:
    try:
        keys = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
        return keys["public"], keys["secret"]
    except (OSError, msgspec.DecodeError, KeyError) as error:
        raise InputError(f"{path} is not the key pair that spotlightd made: {error!r}") from None
