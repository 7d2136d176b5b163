"""How instants, durations and numbers are written for people, and how instants are read that they type. Nothing here
reads a clock."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from types import MappingProxyType
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import msgspec
from markupsafe import Markup, escape

from horarium.clock import DAY, HOUR, INSTANT_MAX, MINUTE, SECOND, Instant, to_datetime, to_instant, to_text
from horarium.errors import HorariumError, InvalidRequest
from horarium.wire.faults import Fault

NO_PLACES: Mapping[str, str] = MappingProxyType({})
MILLISECOND = SECOND // 1000
_TURNING = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_FIELD = re.compile("^[a-z_.]+: ")
_BOUND = re.compile(r"^expected (?:int|float|(str of length)) ([<>]=?) (\S+)$")
_SIGNS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
ISO = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z", re.ASCII)
_UNITS = ((DAY, "d"), (HOUR, "h"), (MINUTE, "m"), (SECOND, "s"))


def json_lines(text: bytes) -> str:
    """JSON, indented, and as `escaped` shows it."""
    return escaped(msgspec.json.format(text, indent=2).decode("utf-8", "replace"))


def escaped(text: str) -> str:
    """JSON whose control characters and changes of direction are escapes, for a person who decides about it."""
    return _TURNING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


@lru_cache(maxsize=64)
def zone_of(name: str) -> ZoneInfo:
    """The zone of this name, UTC for one that there is not."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        return ZoneInfo("UTC")


def local(instant: Instant, zone: str) -> datetime:
    """The instant on that zone's clocks."""
    return to_datetime(instant).astimezone(zone_of(zone))


def offset_of(instant: Instant, zone: str) -> float:
    """How many hours that zone's clocks are ahead of UTC."""
    return (local(instant, zone).utcoffset() or timedelta()) / timedelta(hours=1)


def span(micros: int) -> str:
    """How far off something is, in two units: `3 h 27 m`, `56 s`."""
    if micros < MINUTE:
        return f"{micros // SECOND} s"
    for place, (unit, letter) in enumerate(_UNITS[:-1]):
        if micros >= unit:
            smaller, small = _UNITS[place + 1]
            rest = micros % unit // smaller
            whole = f"{micros // unit} {letter}"
            return f"{whole} {rest} {small}" if rest else whole
    raise AssertionError(micros)


def relative(instant: Instant, now: Instant) -> str:
    """`in 3 h 27 m`, `now`, `27 m ago`."""
    if abs(instant - now) < SECOND:
        return "now"
    return f"in {span(instant - now)}" if instant > now else f"{span(now - instant)} ago"


def duration(micros: int | None) -> str:
    """How long something took: `41 ms`, `6.3 s`, `4 m 12 s`."""
    if micros is None:
        return "\u2013"
    if micros < MILLISECOND:
        return "<1 ms"
    if micros < SECOND:
        return f"{micros // MILLISECOND} ms"
    if micros < 10 * SECOND:
        return f"{micros / SECOND:.1f} s"
    return span(micros)


def clock_text(instant: Instant, zone: str, now: Instant) -> str:
    """The time of day within a day, else with its date: `14:35`, `Fri 09:00`, `26 Mar 2027, 02:30`."""
    then, today = local(instant, zone), local(now, zone)
    time = f"{then:%H:%M:%S}" if abs(instant - now) < 2 * MINUTE else f"{then:%H:%M}"
    days = abs((then.date() - today.date()).days)
    if days == 0:
        return time
    if days < 7:
        return f"{then:%a} {time}"
    year = "" if then.year == today.year else f" {then.year}"
    return f"{then.day} {then:%b}{year}, {time}"


def hour_text(instant: Instant, zone: str) -> str:
    """The time of day, with seconds where it has some: `14:35`, `14:35:20`."""
    then = local(instant, zone)
    return f"{then:%H:%M:%S}" if then.second else f"{then:%H:%M}"


def day_text(instant: Instant, zone: str) -> str:
    """`Thu 25 Mar, 02:30`."""
    then = local(instant, zone)
    return f"{then:%a} {then.day} {then:%b}, {then:%H:%M}"


def localized(text: str, zone: str) -> str:
    """A sentence, its instants as times of this zone's clocks."""
    return ISO.sub(lambda found: day_text(to_instant(datetime.fromisoformat(found[0])), zone), text)


def dated(text: str, zone: str, now: Instant) -> Markup:
    """The same, its times written by a browser in its own language."""
    escaped = str(escape(text))
    return Markup(ISO.sub(lambda found: clock(to_instant(datetime.fromisoformat(found[0])), zone, now), escaped))


def second_text(instant: Instant, zone: str) -> str:
    """`Thu 25 Mar, 02:30:00`."""
    return f"{day_text(instant, zone)}:{local(instant, zone):%S}"


def written(instant: Instant, zone: str, style: str = "minute") -> Markup:
    """A date and time on a zone's clocks, which a browser writes again in its own language."""
    return _written(instant, zone, style, second_text(instant, zone) if style == "second" else day_text(instant, zone))


def clock(instant: Instant, zone: str, now: Instant) -> Markup:
    """As `clock_text`, which a browser writes again in its own language."""
    return _written(instant, zone, "clock", clock_text(instant, zone, now))


def _written(instant: Instant, zone: str, style: str, text: str) -> Markup:
    tip = f"{second_text(instant, 'UTC')} UTC"
    return Markup(
        f'<time class="abs" datetime="{utc_text(instant)}" data-zone="{escape(zone)}" data-style="{style}" '
        f'title="{tip}">{text}</time>'
    )


def day_of(instant: Instant, zone: str) -> str:
    """The day on that zone's clocks, `2027-03-25`."""
    return local(instant, zone).date().isoformat()


def precise(instant: Instant, zone: str) -> str:
    """The time of day to the millisecond."""
    then = local(instant, zone)
    return f"{then:%H:%M:%S}.{then.microsecond // 1000:03d}"


def utc_text(instant: Instant) -> str:
    """RFC 3339 in UTC, to the second."""
    return to_text(instant - instant % SECOND)


_NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")


def in_words(count: int) -> str:
    """A number as a sentence begins with it."""
    return _NUMBERS[count] if count < len(_NUMBERS) else f"{count:,}"


def middle(text: str, most: int = 40) -> str:
    """A long name cut in its middle: names often differ in their ends alone."""
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return f"{text[:half]}\u2026{text[-half:]}"


def brief(words: str, zone: str = "") -> str:
    """A rule in words without the instant that it is counted from, which fire times beside it show, and without this
    zone, in which they are written."""
    return words.partition(", counted from ")[0].removesuffix(f", {zone}").replace(" (Monday to Friday)", "")


def address(path: str, **parts: str | Sequence[str] | None) -> str:
    """The address of a page, with those of these parts that have a value."""
    query = urlencode({name: value for name, value in parts.items() if value}, doseq=True)
    return f"{path}?{query}" if query else path


def queue_name(queue: str) -> str:
    """A queue as its owner calls it."""
    return queue.removeprefix("pull/")


def clock_change(now: Instant, until: Instant, zone: str) -> tuple[Instant, float] | None:
    """When the clocks of a zone change next, and by how many hours; None: not until then."""

    def offset(instant: Instant) -> float:
        return offset_of(instant, zone)

    low, high = now, until
    if offset(low) == offset(high):
        return None
    while high - low > SECOND:
        middle = (low + high) // 2
        low, high = (middle, high) if offset(middle) == offset(now) else (low, middle)
    return high - high % SECOND, offset(high) - offset(now)


def plainly(message: str) -> str:
    """The fault of a field, as it stands beside that field: without its name in the API and the names of types."""
    return _BOUND.sub(
        lambda found: f"{_SIGNS[found[2]]} {float(found[3]):,.15g}{' characters' if found[1] else ''}",
        _FIELD.sub("", message),
    )


def fault_in(error: HorariumError, form: Container[str], places: Mapping[str, str] = NO_PLACES) -> Fault:
    """The faults of a form, by its field ("": at none). `places`: fields of the API that it has
    under other names."""
    field = places.get(error.field or "", error.field or "")
    return Fault(field, plainly(error.message)) if field in form else Fault("", error.message)


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
