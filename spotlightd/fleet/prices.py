"""What a GPU-hour costs where an agent stands: by pool and zone, else by zone, else the default."""

from collections.abc import Mapping

ANY_POOL = ""


class Prices:
    """Prices of one spot GPU-hour. Those of the configuration hold for every pool."""

    def __init__(self, default: float, by_zone: Mapping[str, float]) -> None:
        self._default = default
        self._prices = {(ANY_POOL, zone): price for zone, price in by_zone.items()}

    def update(self, prices: Mapping[tuple[str, str], float]) -> None:
        """Take prices by (pool, zone)."""
        self._prices.update(prices)

    def of(self, pool: str, zone: str) -> float:
        for key in ((pool, zone), (ANY_POOL, zone)):
            if key in self._prices:
                return self._prices[key]
        return self._default
