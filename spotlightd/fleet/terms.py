"""Until when each agent's key is valid: a pure function of who is heard, and of time.

A key lives for `ttl_s` after its agent was last heard, so a spot VM that is gone leaves nothing
behind that could be used later. An agent does nothing for it: being there renews its key.
"""

from collections.abc import Iterable, Mapping

RETURN_S = 3600.0
"""After a start of the daemon every key has at least so long, since nobody could be heard."""
WORTH = 2 / 3
"""A term is moved on, and written down, once less than this share of it is left."""


class Terms:
    """Invariant: a key is in `expires_at` exactly while it may be used."""

    def __init__(self, ttl_s: float) -> None:
        self.ttl_s = ttl_s
        self.expires_at: dict[str, float] = {}

    def resume(self, stored: Mapping[str, float], stopped_at: float, now: float) -> None:
        """Take over the terms that still ran when the daemon was last alive."""
        for key, expires_at in stored.items():
            if expires_at > stopped_at:
                longest = min(expires_at, now + self.ttl_s)
                self.expires_at[key] = max(longest, now + min(RETURN_S, self.ttl_s))

    def begin(self, key: str, now: float) -> float:
        """A key is allowed; return until when."""
        self.expires_at[key] = now + self.ttl_s
        return self.expires_at[key]

    def heard(self, keys: Iterable[str], now: float) -> dict[str, float]:
        """Renew the keys of agents that are there; return what is to be written down."""
        due = [
            key
            for key in keys
            if key in self.expires_at and self.expires_at[key] - now < WORTH * self.ttl_s
        ]
        return {key: self.begin(key, now) for key in due}

    def expire(self, now: float) -> list[str]:
        """Return the keys whose term is over, and forget them."""
        over = [key for key, expires_at in self.expires_at.items() if expires_at <= now]
        for key in over:
            del self.expires_at[key]
        return over

    def end(self, key: str) -> None:
        self.expires_at.pop(key, None)
