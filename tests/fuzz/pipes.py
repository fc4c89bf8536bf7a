"""Mutated messages between a process and its children, decoded and read from a real socket pair."""

import socket
import threading
from collections import Counter
from random import Random

from spotlightd.childproc import Channel
from spotlightd.wire import pipe
from spotlightd.wire.codec import WireError
from tests.fuzz.corpus import PIPES, Parts, pipe_message
from tests.fuzz.escaped import Escaped
from tests.fuzz.mutate import mutated


class PipesTarget:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.outcomes: Counter[str] = Counter()

    def feed(self, index: int) -> None:
        """Raises Escaped, with the frame's index."""
        rng = Random(f"{self.seed}:pipe:{index}")
        direction = rng.choice(list(PIPES))
        parts = mutated(rng, pipe_message(rng, direction), pipe_message(rng, direction))
        stream = self._stream(rng, parts)
        try:
            self.outcomes[self._decode(direction, parts)] += 1
            self.outcomes[self._read(direction, stream)] += 1
        except Exception as error:
            raise Escaped(
                f"frame {index} of seed {self.seed}, {direction}: {error!r}\n{stream[:4000].hex()}"
            ) from error

    def _stream(self, rng: Random, parts: Parts) -> bytes:
        stream = bytearray(pipe.pack_sizes(parts) + b"".join(parts))
        if rng.random() < 0.5:
            # In the sizes, mostly.
            for _ in range(rng.randint(1, 3)):
                stream[rng.randrange(min(len(stream), 24))] = rng.randrange(256)
        return bytes(stream[: rng.randint(0, len(stream))] if rng.random() < 0.2 else stream)

    def _decode(self, direction: str, parts: Parts) -> str:
        try:
            PIPES[direction][0].decode(parts)
        except WireError:
            return "refused by decode"
        return "decoded"

    def _read(self, direction: str, stream: bytes) -> str:
        ours, theirs = socket.socketpair()
        channel = Channel(ours, PIPES[direction][0], PIPES[direction][0])
        writer = threading.Thread(target=_write, args=(theirs, stream))
        try:
            writer.start()
            channel.receive(10)
        except WireError:
            return "refused by the reader"
        except EOFError:
            return "cut off"
        finally:
            channel.close()
            writer.join()
        return "read"


def _write(sock: socket.socket, stream: bytes) -> None:
    with sock:
        try:
            sock.sendall(stream)
        except (BrokenPipeError, ConnectionResetError):
            return  # The reader has refused it half-way.
