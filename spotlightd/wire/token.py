"""Join tokens: `spl1.<host>:<port>.<server key>.<id>.<secret>`, one word without shell characters.

The server's CURVE key is pinned in the token, in place of a certificate authority. It is written
as base64url because Z85, ZeroMQ's own form, has dots and quotes. Only a hash of the secret is
kept by the daemon, and the secret itself never crosses the wire: an agent proves that it holds
it by an HMAC of its own public key.
"""

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass, field

from spotlightd.errors import InputError

PREFIX = "spl1"
Z85_ALPHABET = (
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
KEY_BYTES = 32


@dataclass(frozen=True)
class Token:
    endpoint: str
    """`host:port` of the enrolment socket."""
    server_key: str
    """Z85."""
    token_id: str
    secret: str = field(repr=False)


def make_token(token: Token) -> str:
    """Return the token as one word."""
    key = base64.urlsafe_b64encode(z85_decode(token.server_key)).rstrip(b"=").decode()
    return ".".join([PREFIX, token.endpoint, key, token.token_id, token.secret])


def parse_token(text: str) -> Token:
    """Read a token. Raises InputError, which never repeats the token, when it is malformed."""
    expected = "expected spl1.HOST:PORT.KEY.ID.SECRET as spotlightctl token create prints it"
    prefix, _, rest = text.strip().partition(".")
    parts = rest.rsplit(".", 3)
    if prefix != PREFIX or len(parts) != 4 or not all(parts):
        raise InputError(f"this is no join token: {expected}")
    endpoint, key, token_id, secret = parts
    host, colon, port = endpoint.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"the token's address is malformed: {expected}")
    try:
        raw = base64.b64decode(key + "=" * (-len(key) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != KEY_BYTES:
        raise InputError(f"the token's server key is malformed, perhaps cut off: {expected}")
    return Token(endpoint, z85_encode(raw), token_id, secret)


def secret_key(secret: str) -> bytes:
    """Return what the daemon keeps of a secret, and proofs are made under."""
    return hashlib.sha256(secret.encode()).digest()


def proof_under(key: bytes, public_key: str) -> str:
    """Return the proof, in hex, that the holder of `public_key` knows the secret behind `key`."""
    return hmac.new(key, public_key.encode(), hashlib.sha256).hexdigest()


def z85_encode(raw: bytes) -> str:
    """Return ZeroMQ's text form of bytes whose number is a multiple of 4 (ZeroMQ RFC 32)."""
    text = ""
    for start in range(0, len(raw), 4):
        value = int.from_bytes(raw[start : start + 4], "big")
        text += "".join(Z85_ALPHABET[value // 85**power % 85] for power in range(4, -1, -1))
    return text


def z85_decode(text: str) -> bytes:
    """Invert `z85_encode`. Raises InputError for what is not Z85."""
    raw = b""
    for start in range(0, len(text), 5):
        value = 0
        for character in text[start : start + 5]:
            if character not in Z85_ALPHABET:
                raise InputError("a CURVE key holds a character that is not Z85")
            value = value * 85 + Z85_ALPHABET.index(character)
        if value >= 2**32 or len(text) % 5:
            raise InputError("a CURVE key is not valid Z85")
        raw += value.to_bytes(4, "big")
    return raw
