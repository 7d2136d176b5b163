"""Cities that the IANA time zones are named after: `Tokyo` is Asia/Tokyo, `new york` is America/New_York."""

from __future__ import annotations

from functools import lru_cache

from horarium.triggers.zones import zone_names

_REGIONS = frozenset(
    ("Africa", "America", "Antarctica", "Asia", "Atlantic", "Australia", "Europe", "Indian", "Pacific")
)


def city_zone(name: str) -> str | None:
    """The zone named after a place, given in small letters; None where there is none."""
    return _cities().get(name)


@lru_cache(maxsize=1)
def _cities() -> dict[str, str]:
    found: dict[str, str] = {}
    for zone in sorted(zone_names(), key=lambda name: (-name.count("/"), name)):
        region, _, city = zone.rpartition("/")
        if region.split("/")[0] in _REGIONS:
            found[city.lower().replace("_", " ")] = zone
    return found


__all__ = ["city_zone"]
