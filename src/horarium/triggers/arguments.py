"""Keyword arguments that other schedulers take where ours take one text: `cron(hour=3)`, `every(minutes=5)`.

They are refused with what to write instead. A wrong call is a TypeError, as Python's own, and a ValueError, as every
error about what a caller gave.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from horarium.errors import UnknownArgument
from horarium.triggers.words import nearest

P = ParamSpec("P")
T = TypeVar("T")

_CRON_FIELDS = ("second", "minute", "hour", "day", "month", "day_of_week")
"""In the order of an expression; each is 0 where a later one alone is given, and `*` where an earlier one is."""
_CRON_NAMES = {"day_of_month": "day", "dow": "day_of_week", "month_of_year": "month", "weekday": "day_of_week"}
_UNITS = {"weeks": "w", "days": "d", "hours": "h", "minutes": "m", "seconds": "s"}


def explained(advise: Callable[[Mapping[str, Any]], str]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Refuse keyword arguments that the function does not take, with advice about them or the nearest name."""

    def wrap(function: Callable[P, T]) -> Callable[P, T]:
        known = list(inspect.signature(function).parameters)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            unknown = {name: value for name, value in kwargs.items() if name not in known}
            if unknown:
                name = next(iter(unknown))
                hint = advise(unknown) or nearest(name, known) or f"; known: {', '.join(known)}"
                raise UnknownArgument(f"{function.__name__}: there is no argument {name!r}{hint}", field=name)
            return function(*args, **kwargs)

        return call

    return wrap


def advise_cron(given: Mapping[str, Any]) -> str:
    """The expression of `hour=3` and its like; nothing for other arguments."""
    named = {_CRON_NAMES.get(name, name): str(value) for name, value in given.items()}
    if not named.keys() <= set(_CRON_FIELDS):
        return ""
    first = min(_CRON_FIELDS.index(name) for name in named)
    fields = [named.get(name, "0" if index < first else "*") for index, name in enumerate(_CRON_FIELDS)]
    if first > _CRON_FIELDS.index("day"):
        fields[_CRON_FIELDS.index("day")] = "*" if first == _CRON_FIELDS.index("day_of_week") else "1"
    if first == _CRON_FIELDS.index("day_of_week"):
        fields[_CRON_FIELDS.index("month")] = "*"
    expression = " ".join(fields if "second" in named else fields[1:])
    return f'; give an expression: cron("{expression}")'


def advise_every(given: Mapping[str, Any]) -> str:
    """The text of `minutes=5` and its like; nothing for other arguments."""
    if not given.keys() <= _UNITS.keys():
        return ""
    whole = all(isinstance(value, int) for value in given.values())
    text = "".join(f"{given[name]}{unit}" for name, unit in _UNITS.items() if name in given)
    inner = ", ".join(f"{name}={value}" for name, value in given.items())
    return f'; give a duration: every("{text}")' if whole else f"; give a duration: every(timedelta({inner}))"
