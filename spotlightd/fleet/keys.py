"""The daemon's own CURVE key, and the one before it while a rotation lasts.

A server socket holds one key, and a client's first word is sealed for the key that it was told. Two
keys at once are therefore two pairs of ports: the keys live in two slots, and the ports of a slot
stay, so that agents which still pin the old key find it where it was.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import zmq

from spotlightd.atomic import write_file
from spotlightd.errors import InputError, UsageError
from spotlightd.fleet.auth import KeyPair

CREDENTIAL = "server.key"


class ServerKeys(msgspec.Struct, frozen=True):
    """What a key file holds. A file with one pair alone is a valid one."""

    public: str
    """Z85, as `secret`; new tokens pin this key."""
    secret: str
    slot: int = 0
    """0 or 1: which ports serve it; the previous key has the other."""
    previous: KeyPair | None = None
    """Set while a rotation lasts: agents that pin it are served, and told of the new one."""

    @property
    def pair(self) -> KeyPair:
        return KeyPair(self.public, self.secret)

    def __repr__(self) -> str:
        return f"ServerKeys(public={self.public!r}, slot={self.slot}, previous={self.previous!r})"


def new_keys() -> ServerKeys:
    public, secret = zmq.curve_keypair()
    return ServerKeys(public.decode(), secret.decode())


def rotated(keys: ServerKeys) -> ServerKeys:
    """Return a new key with the current one beside it.

    Raises UsageError while an earlier rotation lasts: a third key has no ports.
    """
    if keys.previous is not None:
        raise UsageError(
            "the last rotation is not over: once no agent uses the previous key any more, end it "
            "with spotlightd keys retire, then rotate again"
        )
    new = new_keys()
    return msgspec.structs.replace(new, slot=1 - keys.slot, previous=keys.pair)


def retired(keys: ServerKeys) -> ServerKeys:
    """Return the current key alone. Raises UsageError where no rotation lasts."""
    if keys.previous is None:
        raise UsageError("there is no previous key to retire")
    return msgspec.structs.replace(keys, previous=None)


def encode_keys(keys: ServerKeys) -> bytes:
    return msgspec.json.encode(keys) + b"\n"


def read_keys(path: Path) -> ServerKeys:
    """Raises InputError when the file is missing, unreadable or holds no key."""
    try:
        keys = msgspec.json.decode(path.read_bytes(), type=ServerKeys)
        pairs = [keys.pair, *([keys.previous] if keys.previous else [])]
        for pair in pairs:
            if zmq.curve_public(pair.secret.encode()).decode() != pair.public:
                raise ValueError("its two halves do not belong together")
        return keys
    except (OSError, ValueError, zmq.ZMQError) as error:
        raise InputError(
            f"{path} should hold the daemon's CURVE key but cannot be read ({error}); restore it "
            f"from a backup, or remove it and enrol every agent again"
        ) from None


def write_keys(path: Path, keys: ServerKeys) -> None:
    """Write the file whole, readable by its owner alone (mode 0600)."""
    write_file(path, encode_keys(keys))


def server_keys(state_dir: Path, environ: Mapping[str, str] = os.environ) -> ServerKeys:
    """Return the daemon's keys: systemd's credential, else the state directory's, made if missing.

    Raises InputError for a file that is no key.
    """
    folder = environ.get("CREDENTIALS_DIRECTORY", "")
    if folder and (Path(folder) / CREDENTIAL).exists():
        return read_keys(Path(folder) / CREDENTIAL)
    path = state_dir / "keys" / CREDENTIAL
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_keys(path, new_keys())
    return read_keys(path)
