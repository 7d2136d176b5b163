"""The calendar that a phrase names: `every business day at 9am on calendar de-be`, `last business day (target2)`."""

from __future__ import annotations

import re

from horarium.errors import InvalidTrigger

_NAME = r"[A-Za-z0-9][A-Za-z0-9._:@-]*"
_NAMED = re.compile(
    rf"\(\s*(?:(?:calendar|on calendar)\s+)?({_NAME})\s*\)"
    rf"|(?:(?<!\w)(?:on|in|of|by|with)\s+)?(?:(?<!\w)the\s+)?(?<!\w)calendar\s+(?!(?:day|week|month|quarter|year)s?\b)({_NAME})",
    re.IGNORECASE | re.ASCII,
)


def without_calendar(text: str) -> tuple[str, str | None]:
    """The phrase without the calendar that it names, each word where it was; and that name. Raises InvalidTrigger for a
    second one."""
    found = list(_NAMED.finditer(text))
    if not found:
        return text, None
    if len(found) > 1:
        raise InvalidTrigger("text: a second calendar; a phrase names one", field="text", position=found[1].start())
    begin, end = found[0].span()
    return text[:begin] + " " * (end - begin) + text[end:], found[0][1] or found[0][2]


def calendar_named(text: object) -> str | None:
    """The name of the calendar in a phrase; of what is none, there is none."""
    found = _NAMED.search(text) if isinstance(text, str) else None
    return None if found is None else found[1] or found[2]
