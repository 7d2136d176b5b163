"""Instants for people: how far off, in the local zone, and in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo

_STEPS = ((86_400 * 2, 86_400, "d"), (5_400, 3_600, "h"), (90, 60, "min"), (0, 1, "s"))
"""From this many seconds on, in units of that many seconds, with this name."""

YEAR_SECONDS = 365 * 86_400


def relative(moment: datetime, now: datetime) -> str:
    """`in 3 min`, `2 h ago`, `now`: the distance from `now` in one unit."""
    seconds = (moment - now).total_seconds()
    if abs(seconds) < 1:
        return "now"
    text = duration(abs(seconds))
    return f"in {text}" if seconds > 0 else f"{text} ago"


def duration(seconds: float) -> str:
    """A length of time in one unit: `0.4 s`, `12 s`, `3 min`, `5 h`, `4 d`, `2 y`."""
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 ", " ")
    if seconds >= 2 * YEAR_SECONDS:
        return f"{seconds / YEAR_SECONDS:.0f} y"
    _, size, unit = next(step for step in _STEPS if seconds >= step[0])
    return f"{seconds / size:.0f} {unit}"


def local(moment: datetime, now: datetime, zone: tzinfo | None = None) -> str:
    """The wall time in the zone (None: that of this machine), as short as it can be told from others: without the
    seconds where they are zero, with the year where it is another one."""
    here, today = moment.astimezone(zone), now.astimezone(zone)
    year = f" {here.year}" if here.year != today.year else ""
    return f"{here.day} {here:%b}{year} {_clock(here)}"


def universal(moment: datetime) -> str:
    """The time of day in UTC: `03:00Z`."""
    return f"{_clock(moment.astimezone(UTC))}Z"


def is_utc(now: datetime, zone: tzinfo | None = None) -> bool:
    """Whether the zone (None: that of this machine) is UTC, so that one column is enough."""
    return not now.astimezone(zone).utcoffset()


def _clock(moment: datetime) -> str:
    return f"{moment:%H:%M}" if moment.second == 0 and moment.microsecond == 0 else f"{moment:%H:%M:%S}"
