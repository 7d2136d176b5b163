"""Reading a trigger's JSON form, field by field.

Owns the checks that every type needs: unknown fields (the nearest known one is named), wrong types, text, numbers,
instants, nested triggers. Each check raises InvalidTrigger with the field's own name; a trigger that nests others puts
the place in front (`trigger.triggers[1].expression`), so that a message always says where. Nothing here recurses
without a bound: a nested trigger carries its depth.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from horarium.clock import INSTANT_MAX, INSTANT_MIN, Instant, to_instant, to_text
from horarium.errors import InvalidTrigger, TooExpensive
from horarium.triggers.words import nearest, quote

if TYPE_CHECKING:
    from horarium.triggers.base import Trigger

DEPTH_MAX = 8
"""How deep triggers nest: a plain trigger has depth 1."""

_INSTANT = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)

Parse = Callable[[object, int], "Trigger"]


class within:  # noqa: N801 - read as a word: `with within("trigger"):`
    """Puts `place` in front of the field that an InvalidTrigger names."""

    __slots__ = ("_place",)

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, InvalidTrigger):
            return
        field = error.field or ""
        dot = "." if field and not field.startswith("[") else ""
        again = TooExpensive if isinstance(error, TooExpensive) else InvalidTrigger
        raise again(error.message, field=f"{self._place}{dot}{field}", position=error.position) from None


def read_instant(given: object, field: str) -> Instant:
    """An RFC 3339 text with an offset (or an aware datetime) as an instant."""
    if isinstance(given, datetime):
        return check_instant(_from_datetime(given, field), field)
    found = _INSTANT.fullmatch(given) if isinstance(given, str) and len(given) <= 40 else None
    expected = "expected a date and time with an offset, e.g. 2026-12-24T18:00:00+01:00"
    if found is None:
        raise InvalidTrigger(f"{field}: {quote(given)}: {expected}", field=field)
    day, time, fraction, offset = found.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{time}{(fraction or '')[:7]}{offset.upper()}")
        return check_instant(to_instant(moment), field)
    except (ValueError, OverflowError) as error:
        if isinstance(error, InvalidTrigger):
            raise
        raise InvalidTrigger(f"{field}: {quote(given)} is no such date and time: {expected}", field=field) from None


def _from_datetime(given: datetime, field: str) -> Instant:
    try:
        return to_instant(given)
    except (ValueError, OverflowError):
        raise InvalidTrigger(
            f"{field}: {given.isoformat()} has no time zone; give an aware datetime, e.g. with tzinfo=UTC", field=field
        ) from None


def check_instant(instant: Instant, field: str) -> Instant:
    """The instant itself if it lies from 1970 to 2200."""
    if not INSTANT_MIN <= instant < INSTANT_MAX:
        raise InvalidTrigger(
            f"{field}: expected an instant from {to_text(INSTANT_MIN)} to the end of the year 2200", field=field
        )
    return instant


class Spec:
    """The JSON form of one trigger, being read. Fields that are read are known; `done()` refuses the rest."""

    def __init__(self, fields: Mapping[str, Any], depth: int, parse: Parse, *, stored: bool = False) -> None:
        self.stored = stored
        """Whether it was checked when it was defined: costly checks need not be made again."""
        self._fields = fields
        self.depth = depth
        self._parse = parse
        self._known = {"type"}

    def only(self, name: str) -> bool:
        """Whether this field is given, and no other."""
        if len(self._fields) != 2 or self._fields.get(name) is None:
            return False
        self._known.add(name)
        return "type" in self._fields

    def has(self, name: str) -> bool:
        """Whether the field is given; null counts as not given."""
        self._known.add(name)
        return self._fields.get(name) is not None

    def get(self, name: str) -> object:
        """The field as it is, or None."""
        self._known.add(name)
        return self._fields.get(name)

    def need(self, name: str, expected: str) -> object:
        """The field as it is; refused if it is missing. `expected` says what it should hold."""
        if not self.has(name):
            unknown = self._unknown()
            hint = f"; {quote(unknown)} is not a field of it{nearest(unknown, [name])}" if unknown else ""
            raise InvalidTrigger(f"{name} is missing: expected {expected}{hint}", field=name)
        return self._fields[name]

    def text(self, name: str, expected: str, default: str | None = None) -> str:
        """A text field."""
        if default is not None and not self.has(name):
            return default
        given = self.need(name, expected)
        if not isinstance(given, str):
            raise InvalidTrigger(f"{name}: expected {expected}, not {quote(given)}", field=name)
        return given

    def optional_text(self, name: str, expected: str) -> str | None:
        """A text field that may be absent."""
        return self.text(name, expected) if self.has(name) else None

    def instant(self, name: str) -> Instant:
        """An RFC 3339 field."""
        return read_instant(self.need(name, "a date and time with an offset"), name)

    def optional_instant(self, name: str) -> Instant | None:
        """An RFC 3339 field that may be absent."""
        return self.instant(name) if self.has(name) else None

    def list(self, name: str, expected: str, limit: int) -> list[Any]:
        """A list of 1 to `limit` items."""
        given = self.need(name, expected)
        if not isinstance(given, list | tuple):
            raise InvalidTrigger(f"{name}: expected {expected}, not {quote(given)}", field=name)
        if not given:
            raise InvalidTrigger(f"{name}: expected {expected}, not an empty one", field=name)
        if len(given) > limit:
            raise InvalidTrigger(f"{name}: expected at most {limit} items, not {len(given)}", field=name)
        return list(given)

    def trigger(self, name: str) -> Trigger:
        """A nested trigger."""
        return self.nested(self.need(name, "a trigger, e.g. {'type': 'cron', ...}"), name)

    def nested(self, given: object, place: str) -> Trigger:
        """A trigger out of this one's fields, at `place`."""
        with within(place):
            return self.parse_deeper(given)

    def parse_deeper(self, given: object) -> Trigger:
        """A trigger out of this one's fields; the caller says where."""
        return self._parse(given, self.depth + 1)

    def done(self) -> None:
        """Refuses given fields that were not read, naming the nearest known one."""
        unknown = self._unknown()
        if unknown is not None:
            known = sorted(self._known)
            raise InvalidTrigger(
                f"{quote(unknown)} is not a field of this trigger{nearest(unknown, known)}; known: {', '.join(known)}",
                field=unknown if unknown.isascii() and unknown.isprintable() and len(unknown) <= 60 else None,
            )

    def _unknown(self) -> str | None:
        for name in self._fields:
            if name not in self._known:
                return str(name)
        return None
