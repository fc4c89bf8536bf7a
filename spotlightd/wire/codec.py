"""Messages to frames and back: MessagePack header first, raw frames after it.

Decoding checks everything that types can say (tag, fields, bounds), that the announced frames
arrived with their announced sizes, and that no float is NaN or infinite. A peer can therefore
only cause a `WireError`.
"""

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from spotlightd.errors import SpotlightError
from spotlightd.wire.messages import AnyMessage, FrameSpec, Message
from spotlightd.wire.training import TrainingMessage
from spotlightd.wire.weights import WeightsMessage

Buffer = bytes | bytearray | memoryview

MAX_HEADER_BYTES = 4 * 2**20


class WireError(SpotlightError):
    """What arrived is not a message of this protocol."""


class TypedCodec:
    """Encodes and decodes one tagged union of message structs."""

    def __init__(self, union: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(union)
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, message: Message, frames: Sequence[Buffer] = ()) -> list[Buffer]:
        """Return the multipart message. `message.frames` must announce `frames` in order."""
        specs: Sequence[FrameSpec] = getattr(message, "frames", ())
        sizes = [memoryview(frame).nbytes for frame in frames]
        if [spec.size for spec in specs] != sizes:
            raise ValueError(f"{type(message).__name__} announces {specs}, given sizes {sizes}")
        return [self._encoder.encode(message), *frames]

    def decode(self, parts: Sequence[Buffer]) -> tuple[Any, list[Buffer]]:
        """Return the message and its raw frames.

        Raises:
            WireError: header too large or malformed, a value out of bounds or not finite, or
                frames that differ from what the header announces.
        """
        if not parts:
            raise WireError("empty message: expected a MessagePack header")
        header = parts[0]
        size = memoryview(header).nbytes
        if size > MAX_HEADER_BYTES:
            raise WireError(f"header of {size} bytes: at most {MAX_HEADER_BYTES} are accepted")
        try:
            message = self._decoder.decode(header)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise WireError(f"malformed header: {error}") from None
        specs: Sequence[FrameSpec] = getattr(message, "frames", ())
        sizes = [memoryview(part).nbytes for part in parts[1:]]
        announced = [spec.size for spec in specs]
        if announced != sizes:
            raise WireError(
                f"{type(message).__name__} announces frames of {announced} bytes, got {sizes}"
            )
        _check_finite(message)
        return message, list(parts[1:])


def _check_finite(value: Any) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise WireError("a number in the message is not finite")
    elif isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            _check_finite(getattr(value, field))
    elif isinstance(value, dict):
        for item in value.values():
            _check_finite(item)
    elif isinstance(value, tuple | list):
        for item in value:
            _check_finite(item)


LINK = TypedCodec(AnyMessage | TrainingMessage | WeightsMessage)
"""Codec of the fleet link and of the channel between peers."""


def frame_specs(**frames: Buffer) -> tuple[FrameSpec, ...]:
    """Announce named frames, in the order in which they are given."""
    return tuple(FrameSpec(name, memoryview(data).nbytes) for name, data in frames.items())
