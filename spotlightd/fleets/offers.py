"""Where a GPU can be had and for how much: SkyPilot's own catalogue, as its client keeps it.

`~/.sky/catalogs/<version>/<cloud>/vms.csv` has a row per instance type and zone, with the price of
the whole instance. SkyPilot fetches it at its first use (`sky check`) and keeps it fresh.
"""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from spotlightd.errors import InputError


@dataclass(frozen=True)
class Offer:
    cloud: str
    region: str
    zone: str
    """Empty where the cloud sells by region."""
    price: float
    """Of one spot GPU-hour."""

    @property
    def place(self) -> str:
        """What an agent there reports as its zone."""
        return self.zone or self.region

    @property
    def infra(self) -> str:
        """SkyPilot's name of the place: cloud/region/zone."""
        return "/".join(part for part in (self.cloud, self.region, self.zone) if part)


def read_catalogue(folder: Path, gpu: str, gpus: int) -> list[Offer]:
    """Return what the catalogue offers, cheapest first and one offer a zone.

    Raises InputError where there is no catalogue.
    """
    versions = sorted(
        (path for path in folder.glob("v*") if path.name[1:].isdigit()),
        key=lambda path: int(path.name[1:]),
    )
    if not versions:
        raise InputError(
            f"no catalogue of prices in {folder}: run `sky check` once, which fetches it, or leave "
            f"out --max-price"
        )
    offers: dict[str, Offer] = {}
    for path in sorted(versions[-1].glob("*/vms.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            for offer in offers_in(csv.DictReader(file), path.parent.name, gpu, gpus):
                known = offers.get(offer.infra)
                if known is None or offer.price < known.price:
                    offers[offer.infra] = offer
    return sorted(offers.values(), key=lambda offer: (offer.price, offer.infra))


def offers_in(
    rows: Iterable[Mapping[str, str]], cloud: str, gpu: str, gpus: int
) -> Iterable[Offer]:
    """Yield a cloud's spot offers of exactly so many of a GPU on one VM."""
    for row in rows:
        try:
            fits = (
                row["AcceleratorName"].lower() == gpu.lower()
                and float(row["AcceleratorCount"]) == gpus
            )
            price = float(row["SpotPrice"]) / gpus
        except (KeyError, ValueError):
            # No GPU, or not sold as spot.
            continue
        if fits and price > 0:
            yield Offer(cloud, row.get("Region", ""), row.get("AvailabilityZone", "") or "", price)


def affordable(offers: list[Offer], max_price: float | None, gpu: str) -> list[Offer]:
    """Return the offers within the limit.

    Raises InputError where there is none, naming the cheapest that there is.
    """
    found = [offer for offer in offers if max_price is None or offer.price <= max_price]
    if found:
        return found
    cheapest = f"the cheapest is {offers[0].price:.2f} in {offers[0].infra}" if offers else ""
    raise InputError(
        f"no zone of the catalogue sells a spot {gpu} for {max_price} an hour or less: "
        f"{cheapest or 'it lists none at all, so check the name with `sky gpus list`'}"
    )
