"""From JSON to a trigger: which class reads which type.

Our own types are named here and imported when first asked for; any other type is looked for in the entry-point group
`horarium.triggers`, so that a package adds one by declaring it. Never imports an entry point whose type was not asked
for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from typing import Protocol, cast

from horarium.errors import InvalidTrigger
from horarium.triggers.base import Trigger
from horarium.triggers.budget import spend, spend_first
from horarium.triggers.spec import DEPTH_MAX, Spec, within
from horarium.triggers.words import nearest, quote

GROUP = "horarium.triggers"
"""The entry-point group of triggers that other packages bring."""

_OURS = {
    "cron": ("cron_trigger", "Cron"),
    "interval": ("interval", "Interval"),
    "once": ("once", "Once"),
    "phrase": ("phrase", "Phrase"),
    "rrule": ("rrule_trigger", "RRule"),
    "any_of": ("compose", "AnyOf"),
    "except": ("compose", "Except"),
    "between": ("compose", "Between"),
    "business_day": ("business", "BusinessDay"),
    "after": ("join", "After"),
}


READ_STEPS = 20
"""The cost of reading a trigger that is a part of another, in steps."""


class Readable(Protocol):
    """The reader of a type: its class, as a rule."""

    def from_spec(self, spec: Spec) -> Trigger:
        """The trigger of a JSON form whose `type` is this one's."""
        ...


def parse_trigger(spec: object, *, field: str = "trigger") -> Trigger:
    """The trigger of a JSON form such as `{"type": "cron", "expression": "0 3 * * *"}`.

    Raises InvalidTrigger, whose `field` says where: `trigger.expression`, `trigger.triggers[1].at`.
    """
    with within(field):
        return parse_at(spec, 1)


def read_stored(spec: object) -> Trigger:
    """As `parse_trigger`, for one that was accepted before: whether anything is left of it is not searched again."""
    return parse_at(spec, 1, stored=True)


def _parse_stored(given: object, depth: int) -> Trigger:
    return parse_at(given, depth, stored=True)


def parse_at(given: object, depth: int, *, stored: bool = False) -> Trigger:
    """As `parse_trigger`, for a trigger that is at some depth of another; errors name the field from there."""
    if depth > DEPTH_MAX:
        raise InvalidTrigger(f"triggers nest deeper than {DEPTH_MAX}: flatten them")
    if depth > 1:
        spend()
        spend_first(READ_STEPS)
    if not isinstance(given, Mapping):
        raise InvalidTrigger(f"expected an object such as {{'type': 'cron', ...}}, not {quote(given)}")
    name = given.get("type")
    if not isinstance(name, str):
        raise InvalidTrigger(f"type: expected one of {', '.join(_OURS)}, not {quote(name)}", field="type")
    spec = Spec(given, depth, _parse_stored if stored else parse_at, stored=stored)
    trigger = _reader(name).from_spec(spec)
    spec.done()
    return trigger


def _reader(name: str) -> Readable:
    if name in _OURS:
        return _load(name)
    found = _load_foreign(name) if len(name) <= 60 else None
    if found is None:
        raise InvalidTrigger(
            f"type: {quote(name)} is not known{nearest(name, _OURS)}: expected one of {', '.join(_OURS)}, "
            f"or a type that an installed package brings (entry-point group {GROUP})",
            field="type",
        )
    return found


@lru_cache(maxsize=16)
def _load(name: str) -> Readable:
    module, attribute = _OURS[name]
    return cast(Readable, getattr(import_module(f"horarium.triggers.{module}"), attribute))


@lru_cache(maxsize=64)
def _load_foreign(name: str) -> Readable | None:
    from importlib.metadata import entry_points

    found = next(iter(entry_points(group=GROUP, name=name)), None)
    return None if found is None else cast(Readable, found.load())
