"""Instants as a browser's fields give them."""

from __future__ import annotations

from datetime import datetime

from horarium.clock import INSTANT_MAX, SECOND, Instant, to_datetime, to_instant
from horarium.dashboard.formats import zone_of
from horarium.errors import InvalidRequest


def clock_change(now: Instant, until: Instant, zone: str) -> tuple[Instant, float] | None:
    """When the clocks of a zone change next, and by how many hours; None: not until then."""
    known = zone_of(zone)

    def offset(instant: Instant) -> float:
        shift = to_datetime(instant).astimezone(known).utcoffset()
        return 0.0 if shift is None else shift.total_seconds() / 3600

    low, high = now, until
    if offset(low) == offset(high):
        return None
    while high - low > SECOND:
        middle = (low + high) // 2
        low, high = (middle, high) if offset(middle) == offset(now) else (low, middle)
    return high - high % SECOND, offset(high) - offset(now)


def instant_of(text: str, field: str, zone: str) -> Instant | None:
    """Local time of a zone, or RFC 3339, within the years 1970 to 2200; None for nothing. Raises InvalidRequest."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return min(
            max(to_instant(moment if moment.tzinfo else moment.replace(tzinfo=zone_of(zone))), 0), INSTANT_MAX - 1
        )
    except (ValueError, OverflowError):
        message = f"{field}: {text[:50]!r} is no date and time, such as 2026-12-24T18:00"
        raise InvalidRequest(message, field=field) from None
