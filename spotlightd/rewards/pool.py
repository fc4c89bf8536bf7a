"""Several scorer processes behind one: images of a batch are scored side by side.

    agent or trainer --Score--> scorer (front) --parts--> scorers (leaves)

A leaf that dies takes nobody with it: what it had is scored once more by a fresh one, and if that
dies too, the images of its part fail with that reason.
"""

import subprocess
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from spotlightd.childproc import Channel, spawn
from spotlightd.errors import SpotlightError
from spotlightd.wire import pipe
from spotlightd.wire.codec import Buffer
from spotlightd.wire.worker import Exit, Fatal, Score, Scored, Scores

TRIES = 2


class _Leaf(NamedTuple):
    process: subprocess.Popen[bytes]
    channel: Channel


class Part(NamedTuple):
    """A leaf's share of a batch."""

    message: Score
    frames: list[Buffer]


class Pool:
    """Leaves are started as they are needed, and end with this process."""

    def __init__(self) -> None:
        self._leaves: dict[int, _Leaf] = {}

    def score(self, message: Score, frames: Sequence[Buffer]) -> tuple[tuple[Scored, ...], str]:
        """Return the scores in the message's order, and the scorers' version.

        Raises SpotlightError when a leaf cannot score at all.
        """
        parts = dict(enumerate(split(message, frames)))
        scored: dict[str, Scored] = {}
        version = ""
        for attempt in range(1, TRIES + 1):
            for number, part in parts.items():
                self._send(number, part)
            for number in list(parts):
                answer = self._receive(number)
                if answer is not None:
                    scored |= {item.request_id: item for item in answer.items}
                    version = answer.version
                    del parts[number]
                elif attempt == TRIES:
                    reason = f"the scorer process died {TRIES} times on this image or its company"
                    for item in parts[number].message.items:
                        scored[item.request_id] = Scored(item.request_id, {}, "", reason)
        return tuple(scored[item.request_id] for item in message.items), version

    def close(self) -> None:
        for number in list(self._leaves):
            self._bury(number)

    def _send(self, number: int, part: Part) -> None:
        if number not in self._leaves:
            process, sock = spawn("spotlightd.rewards.scorer")
            channel = Channel(sock, receives=pipe.FROM_SCORER, sends=pipe.TO_SCORER)
            self._leaves[number] = _Leaf(process, channel)
        try:
            self._leaves[number].channel.send(part.message, part.frames)
        except EOFError:
            # Receiving says so too, and there the part is tried again.
            return

    def _receive(self, number: int) -> Scores | None:
        """Return a leaf's answer; None where it died."""
        try:
            received = self._leaves[number].channel.receive()
        except EOFError:
            self._bury(number)
            return None
        assert received is not None
        answer, _ = received
        if isinstance(answer, Fatal):
            raise SpotlightError(answer.reason)
        assert isinstance(answer, Scores)
        return answer

    def _bury(self, number: int) -> None:
        leaf = self._leaves.pop(number)
        try:
            leaf.channel.send(Exit())
        except EOFError:
            pass
        leaf.channel.close()
        leaf.process.wait()


def split(message: Score, frames: Sequence[Buffer]) -> list[Part]:
    """Deal a batch out to as many leaves as its options allow, in turn."""
    count = min(message.options.processes, len(message.items))
    alone = msgspec.structs.replace(message.options, processes=1)
    return [
        Part(
            msgspec.structs.replace(
                message,
                items=message.items[leaf::count],
                frames=message.frames[leaf::count],
                options=alone,
            ),
            list(frames[leaf::count]),
        )
        for leaf in range(count)
    ]
