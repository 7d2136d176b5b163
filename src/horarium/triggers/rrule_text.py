"""Reading the text of a recurrence: content lines of iCalendar (RFC 5545 section 3.1), or a rule by itself.

    FREQ=DAILY                      RRULE:FREQ=DAILY
    DTSTART;TZID=Europe/Berlin:20260101T083000
    RRULE:FREQ=WEEKLY;BYDAY=MO
    EXDATE;TZID=Europe/Berlin:20260105T083000

Owns the lines, their parameters and moments; the rules themselves are read by `recurrence.parts`. Time is linear in the
length of the text, which is limited.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from horarium.errors import InvalidTrigger
from horarium.triggers.recurrence.civil import DAY_SECONDS, YEAR_MAX, YEAR_MIN, month_length, to_day
from horarium.triggers.recurrence.parts import Parts, parse_parts
from horarium.triggers.words import quote

TEXT_MAX: Final = 8_192
"""Characters of rule text."""
DATES_MAX: Final = 1_000
"""Moments in all RDATE lines together, and as many in all EXDATE lines."""
RULES_MAX: Final = 20
"""RRULE and EXRULE lines."""

BARE_START: Final = to_day(1973, 1, 1) * DAY_SECONDS
"""Where a rule without DTSTART starts: midnight, a Monday, the first day of a year. In wall seconds."""


class Moment(NamedTuple):
    """A date and time as written: wall seconds, and the zone that is given with it (`UTC` for a `Z`), if any."""

    wall: int
    zone: str | None


@dataclass(slots=True)
class RuleText:
    """The content of the lines."""

    start: Moment | None = None
    rules: list[Parts] = field(default_factory=list)
    exrules: list[Parts] = field(default_factory=list)
    dates: list[Moment] = field(default_factory=list)
    exdates: list[Moment] = field(default_factory=list)


def read_rule_text(text: str) -> RuleText:
    """The content of a rule text. Raises InvalidTrigger with the position of the fault."""
    if not isinstance(text, str):
        raise _refuse(f"expected a text such as 'FREQ=DAILY', not {quote(text)}")
    if len(text) > TEXT_MAX:
        raise _refuse(f"the rule has {len(text)} characters: expected at most {TEXT_MAX}")
    content = RuleText()
    for position, line in _unfold(text):
        _read_line(content, line, position)
    if not content.rules and not content.dates:
        raise _refuse("there is no rule: expected FREQ=..., RRULE:FREQ=... or RDATE:...")
    return content


def read_moment(text: str, zone: str | None, position: int | None = None) -> Moment:
    """A DATE (its midnight) or DATE-TIME. Second 60 is read as second 59."""
    found = _MOMENT.fullmatch(text)
    if found is None:
        expected = "expected a date such as 20261231, or a date and time such as 20261231T235959Z"
        raise _refuse(f"{quote(text)}: {expected}", position)
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    if not YEAR_MIN <= year <= YEAR_MAX:
        raise _refuse(f"{quote(text)}: expected a year from {YEAR_MIN} to {YEAR_MAX}", position)
    in_month = 1 <= month <= 12 and 1 <= day <= month_length(year, month)
    if not in_month or hour > 23 or minute > 59 or second > 60:
        raise _refuse(f"{quote(text)}: there is no such date and time", position)
    seconds = hour * 3600 + minute * 60 + min(second, 59)
    return Moment(to_day(year, month, day) * DAY_SECONDS + seconds, "UTC" if found[7] else zone)


def _unfold(text: str) -> Iterator[tuple[int, str]]:
    """The lines with their positions. A line that begins with a blank continues the one before (section 3.1)."""
    position = 0
    for line in _FOLD.sub("", text.strip()).replace("\r", "\n").split("\n"):
        if line.strip():
            yield position, line.rstrip()
        position += len(line) + 1


def _read_line(content: RuleText, line: str, position: int) -> None:
    head, colon, value = line.partition(":")
    if not colon:  # a rule by itself
        head, value = "RRULE", line
    name, *parameters = head.split(";")
    read = _LINES.get(name.strip().upper())
    if read is None:
        known = ", ".join(_LINES)
        raise _refuse(f"{quote(name)} (position {position}) is not known: expected one of {known}", position)
    zone = _read_parameters(parameters, position)
    at = position + len(line) - len(value)
    read(content, value.strip(), zone, at)


def _read_parameters(parameters: list[str], position: int) -> str | None:
    """The TZID, if any. VALUE says what the moments show anyway."""
    zone = None
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        name, value = name.strip().upper(), value.strip().strip('"')
        if name == "TZID":
            zone = value.removeprefix("/")
        elif name != "VALUE" or value.upper() not in ("DATE", "DATE-TIME", "PERIOD"):
            message = f"{quote(parameter)} (position {position}): expected TZID=zone or VALUE=DATE, DATE-TIME or PERIOD"
            raise _refuse(message, position)
    return zone


def _read_start(content: RuleText, value: str, zone: str | None, position: int) -> None:
    if content.start is not None:
        raise _refuse(f"DTSTART is given twice (position {position}): give it once", position)
    content.start = read_moment(value.upper(), zone, position)


def _read_rule(content: RuleText, value: str, zone: str | None, position: int) -> None:
    content.rules.append(_parse_rule(content, value, position))


def _read_exrule(content: RuleText, value: str, zone: str | None, position: int) -> None:
    content.exrules.append(_parse_rule(content, value, position))


def _parse_rule(content: RuleText, value: str, position: int) -> Parts:
    if len(content.rules) + len(content.exrules) >= RULES_MAX:
        raise _refuse(f"there are more than {RULES_MAX} rules: combine several triggers with any_of", position)
    return parse_parts(_without_start(content, value, position), position)


def _without_start(content: RuleText, value: str, position: int) -> str:
    """A rule that carries its own start (`FREQ=DAILY;DTSTART=20260101T090000Z`), with blanks in place of it."""
    found = _START_INSIDE.search(value)
    if found is None:
        return value
    zone = found[1] or found[3]
    at = position + found.start(2)
    if zone and found[2].upper().endswith("Z"):
        raise _refuse(f"DTSTART (position {at}) ends with Z and has a TZID too: give one of them", at)
    _read_start(content, found[2], zone, at)
    before, after = value[: found.start()], value[found.end() :]
    blank = " " * (found.end() - found.start())
    return f"{before}{blank}{after}" if before.strip() else f"{blank}{after.replace(';', ' ', 1)}"


def _read_dates(content: RuleText, value: str, zone: str | None, position: int) -> None:
    _extend(content.dates, value, zone, position)


def _read_exdates(content: RuleText, value: str, zone: str | None, position: int) -> None:
    _extend(content.exdates, value, zone, position)


def _extend(moments: list[Moment], value: str, zone: str | None, position: int) -> None:
    """Reads moments separated by commas; of a PERIOD (start/end) the start."""
    for item in value.upper().split(","):
        moments.append(read_moment(item.strip().partition("/")[0], zone, position))
        if len(moments) > DATES_MAX:
            raise _refuse(f"there are more than {DATES_MAX} RDATE or EXDATE values: use several triggers", position)
        position += len(item) + 1


def _refuse(message: str, position: int | None = None) -> InvalidTrigger:
    return InvalidTrigger(message, field="rrule", position=position)


_START_INSIDE: Final = re.compile(
    r"(?:(?:^|;)\s*)DTSTART(?:;TZID=([^:;=]+))?[=:]([0-9TZtz]+)(?:;TZID=([^:;=]+))?\s*(?=;|$)", re.IGNORECASE
)
_FOLD: Final = re.compile(r"\r?\n[ \t]")
_MOMENT: Final = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})(?:T([0-9]{2})([0-9]{2})([0-9]{2})(Z)?)?")
_LINES: Final[dict[str, Callable[[RuleText, str, str | None, int], None]]] = {
    "DTSTART": _read_start,
    "RRULE": _read_rule,
    "RDATE": _read_dates,
    "EXDATE": _read_exdates,
    "EXRULE": _read_exrule,
}
