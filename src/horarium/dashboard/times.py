"""Instants as a browser's fields give them."""

from __future__ import annotations

from datetime import datetime

from horarium.clock import Instant, to_instant
from horarium.dashboard.formats import zone_of
from horarium.errors import InvalidRequest


def instant_of(text: str, field: str, zone: str) -> Instant | None:
    """Local time of a zone, or RFC 3339; None for nothing. Raises InvalidRequest."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return max(to_instant(moment if moment.tzinfo else moment.replace(tzinfo=zone_of(zone))), 0)
    except (ValueError, OverflowError):
        message = f"{field}: {text[:50]!r} is no date and time, such as 2026-12-24T18:00"
        raise InvalidRequest(message, field=field) from None
