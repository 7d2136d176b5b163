"""Words that mean one thing to some people and another to others: refused with the question that settles it."""

from __future__ import annotations

import re


def _either(unit: str, rare: str, often: str) -> str:
    return f"is it {rare} or {often}? write 'every 2 {unit}', or name the {'months' if unit == 'years' else 'days'}"


def _zone(*names: str) -> str:
    return f"which time zone is it? write e.g. {' or '.join(names)}"


_TWICE = "on which {0}? write e.g. '{1}'"
_COUNT = "how many? write the number"
_WHEN = "at what time? write e.g. 6:30am"
_MONTHS = "which months? write e.g. 'in june, july and august'"
_HOURS = "which ones? write e.g. 'every 2 hours starting at {0}'"
_FIRST = "which day is that? write e.g. 'on the first day of every month'"
_WEEKLY = _either("weeks", "every second week", "twice a week")
_MONTHLY = _either("months", "every second month", "twice a month")
_YEARLY = _either("years", "every second year", "twice a year")

QUESTIONS = {
    "bi": "is it every second one, or twice in each? write e.g. 'every 2 weeks' or 'every monday and thursday'",
    "biweekly": _WEEKLY,
    "bimonthly": _MONTHLY,
    "biannually": _YEARLY,
    "biannual": _YEARLY,
    "biyearly": _YEARLY,
    "semiweekly": _TWICE.format("days", "every monday and thursday"),
    "semimonthly": _TWICE.format("days", "on the 1st and 15th of the month"),
    "semiannually": _TWICE.format("days", "on january 1 and july 1"),
    "semiannual": _TWICE.format("days", "on january 1 and july 1"),
    "semi": "is it every half, or twice in each? write e.g. 'on the 1st and 15th of the month'",
    "even": _HOURS.format("0:00"),
    "odd": _HOURS.format("1:00"),
    "payday": "on which days? write e.g. 'on the last business day of the month'",
    "leap": "on which day? write 'on february 29'",
    "start": _FIRST,
    "beginning": _FIRST,
    "few": _COUNT,
    "several": _COUNT,
    "couple": _COUNT,
    "some": _COUNT,
    "dawn": _WHEN,
    "dusk": _WHEN,
    "sunrise": _WHEN,
    "sunset": _WHEN,
    "lunchtime": _WHEN,
    "lunch": _WHEN,
    "early": _WHEN,
    "late": _WHEN,
    "same": _WHEN,
    "summer": _MONTHS,
    "winter": _MONTHS,
    "spring": _MONTHS,
    "autumn": _MONTHS,
    "fall": _MONTHS,
    "weekend": "on saturday or on sunday? write e.g. 'this saturday'",
    "cst": _zone("America/Chicago", "Asia/Shanghai"),
    "ist": _zone("Asia/Kolkata", "Europe/Dublin", "Asia/Jerusalem"),
    "bst": _zone("Europe/London", "Asia/Dhaka"),
    "est": _zone("America/New_York", "Australia/Sydney"),
    "edt": _zone("America/New_York", "Australia/Sydney"),
    "cdt": _zone("America/Chicago", "America/Havana"),
    "mst": _zone("America/Denver", "America/Phoenix", "Asia/Kuala_Lumpur"),
    "pst": _zone("America/Los_Angeles", "Asia/Manila"),
    "ast": _zone("America/Halifax", "Asia/Riyadh"),
    "gst": _zone("Asia/Dubai", "Atlantic/South_Georgia"),
}
"""By the word; asked only where the word is not understood."""

_SLASHED = re.compile(r"(\d{1,2})/(\d{1,2})(?:/(\d{4}))?(?!\d)")


def half_before(hour: str) -> str:
    """`half 8` is 8:30 in London, and 7:30 where people speak like Germans."""
    number = int(hour)
    return f"is it {(number - 2) % 12 + 1}:30 or {number}:30? write it so, with am or pm"


def unslashed_date(text: str) -> str | None:
    """`24/12/2026` as 2026-12-24; None where either number may be the month."""
    first, second, year = text.split("/")
    day, month = (first, second) if int(first) > 12 else (second, first)
    if first != second and int(day) <= 12:
        return None
    return f"{year}-{month.zfill(2)}-{day.zfill(2)}"


def slashed_date(text: str, position: int) -> tuple[int, str] | None:
    """Where a date with slashes begins that has its slash at this position, and what to ask."""
    for begin in (position - 2, position - 1):
        match = _SLASHED.match(text, begin) if begin >= 0 else None
        if match is not None and match.end(1) == position:
            first, second, year = match.group(1).zfill(2), match.group(2).zfill(2), match.group(3) or "YYYY"
            return begin, f"which is the month? write {year}-{first}-{second} or {year}-{second}-{first}"
    return None
