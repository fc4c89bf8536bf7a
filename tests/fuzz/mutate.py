"""Damage to messages, by structure and by byte. A frame follows from its seed and index alone,
and, where it is about leases, from the leases that stand at that moment.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from spotlightd.wire.codec import MAX_HEADER_BYTES
from tests.fuzz.corpus import Parts

NUMBERS = (
    -(2**63), -1, 0, 1, 2, 255, 1000, 1001, 2**31 - 1, 2**31, 2**32 + 5, 2**53 - 1, 2**53,
    2**63 - 1, 2**63, 2**64 - 1, float("nan"), float("inf"), -float("inf"), -0.0, 0.5, 1e9,
    1e9 + 1, 1e200, 1e308, -1e308, 5e-324,
)  # fmt: skip
TEXTS = (
    "", "r", "\0", "a\n", "x" * 201, "x" * 5000, "../../etc/passwd", "\x1b[2J\n", "%s %d {0}",
    "\U0001d518" * 199, "'; DROP TABLE request; --", "agent", "trainer", "rollout", "explore",
    "final", "0" * 64, "A" * 64, "g" * 64, "ab" * 32 + "\n", "tcp://[::1]:0",
    "tcp://" + "1" * 300,
)  # fmt: skip
OTHERS: tuple[Any, ...] = (
    None, True, False, b"", b"\xff" * 9, [], {}, [[]], {"": None}, {"type": "hello"},
    msgspec.msgpack.Ext(5, b"abc"), msgspec.msgpack.Ext(-1, b"\0" * 3),
)  # fmt: skip
BOMBS = (
    b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
    b"\xdb\x7f\xff\xff\xff", b"\xdc\xff\xff", b"\xde\xff\xff", b"\xc9\xff\xff\xff\xff\x01",
    b"\xdd\x00\x3f\xff\xff", b"\x91" * 5000, b"\x81\xa0" * 5000, b"\xc1",
)  # fmt: skip
"""Sizes that nothing follows, deep nesting, and a byte that MessagePack never uses."""


GROWN_BYTES = 2**17
"""A header that has been blown up so far is not blown up further."""


def mutated(rng: Random, parts: Parts, other: Parts) -> Parts:
    """Return a message with up to four kinds of damage; one in twenty stays whole.

    Args:
        other: another message, to take pieces from.
    """
    if rng.random() < 0.05:
        return parts
    damage: list[Callable[[Random, Parts, Parts], Parts]] = [_structure, _bytes, _frames]
    for _ in range(rng.choice((1, 1, 1, 1, 2, 4))):
        (change,) = rng.choices(damage, (16, 2, 2))
        parts = change(rng, list(parts), other)
    return parts


# --- structure --------------------------------------------------------------------------------


def _structure(rng: Random, parts: Parts, other: Parts) -> Parts:
    header, donor = _unpacked(parts), _unpacked(other)
    if not isinstance(header, dict) or len(parts[0]) > GROWN_BYTES:
        return _bytes(rng, parts, other)
    places = list(_places(header))
    if places:
        container, key = rng.choice(places)
        rng.choice(CHANGES)(rng, container, key, donor)
    return [msgspec.msgpack.encode(header), *parts[1:]]


def _unpacked(parts: Parts) -> Any:
    try:
        return msgspec.msgpack.decode(parts[0])
    except (IndexError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _places(value: Any) -> Any:
    """Yield (container, key) of everything inside."""
    if isinstance(value, dict):
        keys: Any = list(value)
    elif isinstance(value, list):
        keys = range(min(len(value), 20))
    else:
        return
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _replace(rng: Random, container: Any, key: Any, donor: Any) -> None:
    kinds: list[Any] = [NUMBERS, TEXTS, OTHERS]
    container[key] = rng.choice(rng.choice(kinds))


def _replace_alike(rng: Random, container: Any, key: Any, donor: Any) -> None:
    """By another value of the same type: most of these decode, and reach the dispatch."""
    match container[key]:
        case bool():
            container[key] = not container[key]
        case int() as value:
            nearby = min(max(value + rng.choice((-1, 1, 2)), 0), 2**64 - 1)
            container[key] = rng.choice([x for x in NUMBERS if isinstance(x, int)] + [nearby] * 9)
        case float() as value:
            container[key] = rng.choice([0.0, value * 2, 1e9, 1e200, rng.random()])
        case str():
            container[key] = rng.choice(TEXTS)
        case list() as value:
            container[key] = (value * rng.choice((0, 2, 3, 40, 5000)))[:5000]
        case _:
            _replace(rng, container, key, donor)


def _delete(rng: Random, container: Any, key: Any, donor: Any) -> None:
    del container[key]


def _add(rng: Random, container: Any, key: Any, donor: Any) -> None:
    if isinstance(container, dict):
        container[rng.choice(TEXTS)] = container[key]
    else:
        container.append(container[key])


def _swap(rng: Random, container: Any, key: Any, donor: Any) -> None:
    other = rng.choice(list(container) if isinstance(container, dict) else range(len(container)))
    container[key], container[other] = container[other], container[key]


def _graft(rng: Random, container: Any, key: Any, donor: Any) -> None:
    """Put a piece of another message there, its tag too, perhaps."""
    places = list(_places(donor))
    if places:
        source, name = rng.choice(places)
        container[key] = source[name]


CHANGES = [_replace, *[_replace_alike] * 8, _delete, _add, _swap, _graft]


# --- bytes ------------------------------------------------------------------------------------


def _bytes(rng: Random, parts: Parts, other: Parts) -> Parts:
    if not parts:
        return [rng.randbytes(rng.randint(0, 64))]
    header = bytearray(parts[0])
    at = rng.randrange(len(header) + 1)
    until = min(len(header), at + rng.randint(1, 8))
    match rng.randrange(9):
        case 0 if at < len(header):
            header[at] ^= 1 << rng.randrange(8)
        case 1 if at < len(header):
            header[at] = rng.randrange(256)
        case 2:
            header[at:at] = rng.randbytes(rng.randint(1, 8))
        case 3:
            del header[at:until]
        case 4:
            del header[at:]
        case 5:
            header[at:at] = header[at:until] * rng.randint(1, 20)
        case 6:
            header[at:] = (other[0] if other else b"")[at:]
        case 7:
            header[at:until] = rng.choice(BOMBS)
        case _:
            if rng.random() < 0.01:
                header += bytes(MAX_HEADER_BYTES)
    return [bytes(header), *parts[1:]]


def _frames(rng: Random, parts: Parts, other: Parts) -> Parts:
    if not parts:
        return parts
    at = rng.randrange(len(parts))
    match rng.randrange(8):
        case 0:
            del parts[at]
        case 1:
            parts.insert(at, rng.randbytes(rng.randint(0, 64)))
        case 2:
            parts[at] = parts[at][: rng.randint(0, len(parts[at]))]
        case 3:
            parts[at] = b""
        case 4:
            parts.reverse()
        case 5:
            parts += [b""] * rng.choice((1, 70, 1000))
        case 6 if len(parts) > 1:
            # Of the announced size, and wrong inside.
            frame = bytearray(parts[-1])
            for _ in range(rng.randint(1, 8) if frame else 0):
                frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
            parts[-1] = bytes(frame)
        case _:
            parts += other[1:]
    return parts
