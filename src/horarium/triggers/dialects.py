"""Cron as other schedulers write it. Quartz and EventBridge count days of the week from 1 = Sunday, where cron counts
from 0, so that `2-6` is Tuesday to Saturday here and Monday to Friday there, and no parser can see which was meant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from horarium.errors import InvalidTrigger

DIALECTS = ("cron", "quartz", "eventbridge")
NAMES = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
DAY_OF_WEEK = {5: 4, 6: 5, 7: 5}
"""The place of that field, by the number of fields."""


def from_dialect(expression: str, dialect: str) -> str:
    """The expression in our cron. Raises InvalidTrigger for another number of fields than that dialect has."""
    if dialect == "cron":
        return expression
    inner = re.fullmatch(r"\s*cron\((.*)\)\s*", expression)
    fields = (inner[1] if inner else expression).split()
    wanted = (6, 7) if dialect == "quartz" else (6,)
    if len(fields) not in wanted:
        known = "6 or 7 fields, seconds first" if dialect == "quartz" else "6 fields, the year last"
        raise InvalidTrigger(f"expression: {dialect} has {known}; {expression!r} has {len(fields)}", field="expression")
    at = 5 if dialect == "quartz" else 4
    fields[at] = ",".join(_from_one(part) for part in fields[at].split(","))
    if dialect == "eventbridge":
        fields = fields[:5] if fields[5] in "*?" else ["0", *fields]
    return " ".join(fields)


def _from_one(part: str) -> str:
    """A day of the week, a range or `6L` and `2#1`, counted from 0 = Sunday instead of 1."""
    days, mark, rest = re.fullmatch(r"([^/#]*)([/#]?)(.*)", part).groups()  # type: ignore[union-attr]
    return re.sub(r"\d+", lambda match: str(int(match[0]) - 1), days) + mark + rest


def warnings_of(spec: Any) -> list[str]:
    """What another scheduler would read otherwise in the cron expressions of a trigger."""
    return [warning for expression in _expressions(spec) if (warning := _warning(expression))]


def _expressions(spec: Any) -> Iterator[str]:
    if isinstance(spec, Mapping):
        if spec.get("type") == "cron" and isinstance(spec.get("expression"), str):
            yield spec["expression"]
        for inner in spec.values():
            yield from _expressions(inner)
    elif isinstance(spec, list | tuple):
        for inner in spec:
            yield from _expressions(inner)


def _warning(expression: str) -> str | None:
    """Expressions of seconds, or with a `?`, are likely to come from there."""
    fields = expression.split()
    at = DAY_OF_WEEK.get(len(fields))
    if at is None or (len(fields) == 5 and "?" not in fields):
        return None
    found = re.search(r"(?<![#/\d])[1-7](?!\d)", fields[at])
    if found is None:
        return None
    day = int(found[0])
    return (
        f"day {day} of the week is {NAMES[day]} here, as in cron; in Quartz and EventBridge it is {NAMES[day - 1]}: "
        f"write names, such as {NAMES[day][:3].upper()}, or say --dialect quartz"
    )
