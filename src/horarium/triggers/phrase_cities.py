"""Cities that the IANA time zones are named after: `Tokyo` is Asia/Tokyo, `new york` is America/New_York."""

from __future__ import annotations

from functools import lru_cache

from horarium.triggers.zones import zone_names

_OF_US = {
    "eastern": "America/New_York",
    "central": "America/Chicago",
    "mountain": "America/Denver",
    "pacific": "America/Los_Angeles",
}
_REGIONS = frozenset(
    ("Africa", "America", "Antarctica", "Asia", "Atlantic", "Australia", "Europe", "Indian", "Pacific")
)


ZONE_NAMES = {
    **{f"us {part}": zone for part, zone in _OF_US.items()},
    **dict.fromkeys(("cet", "cest", "central european"), "Europe/Berlin"),
    "jst": "Asia/Tokyo",
    "kst": "Asia/Seoul",
    "sgt": "Asia/Singapore",
    "hkt": "Asia/Hong_Kong",
    "msk": "Europe/Moscow",
}
"""Names of zones that mean the same everywhere; where one has two offsets, it is the zone with both."""
_KNOWN = {
    **ZONE_NAMES,
    "san francisco": "America/Los_Angeles",
    "mumbai": "Asia/Kolkata",
    "beijing": "Asia/Shanghai",
    "barcelona": "Europe/Madrid",
    "munich": "Europe/Berlin",
    "frankfurt": "Europe/Berlin",
    "geneva": "Europe/Zurich",
    "milan": "Europe/Rome",
    "montreal": "America/Toronto",
}
"""Names that mean one zone to everyone, though no zone is called so."""


def city_zone(name: str) -> str | None:
    """The zone named after a place, given in small letters; None where there is none."""
    return _KNOWN.get(name) or _cities().get(name)


@lru_cache(maxsize=1)
def _cities() -> dict[str, str]:
    found: dict[str, str] = {}
    for zone in sorted(zone_names(), key=lambda name: (-name.count("/"), name)):
        region, _, city = zone.rpartition("/")
        if region.split("/")[0] in _REGIONS:
            found[city.lower().replace("_", " ")] = zone
    return found


__all__ = ["ZONE_NAMES", "city_zone"]
