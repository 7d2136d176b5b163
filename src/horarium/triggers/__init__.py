"""Triggers: the rules that yield fire times, and the registry that reads them from their JSON form.

`parse_trigger` turns `{"type": ..., ...}` into a value; a type that is not ours is looked up, once, in the entry-point
group `horarium.triggers`. Such an entry point names a subclass of `Trigger` with a class method
`from_spec(spec: Spec)`. The kinds of triggers are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from horarium.triggers.base import FIRES_MAX, Trigger
from horarium.triggers.registry import GROUP, parse_trigger, read_stored
from horarium.triggers.spec import Spec

if TYPE_CHECKING:
    from horarium.triggers.business import BusinessDay, business_day
    from horarium.triggers.compose import AnyOf, Between, Except, any_of, between, except_
    from horarium.triggers.cron_trigger import Cron, cron
    from horarium.triggers.interval import Interval, every
    from horarium.triggers.join import After, after
    from horarium.triggers.once import Once, at
    from horarium.triggers.phrase import Phrase, when
    from horarium.triggers.rrule_trigger import RRule, rrule

_PLACES = {
    "business": ("BusinessDay", "business_day"),
    "compose": ("AnyOf", "Between", "Except", "any_of", "between", "except_"),
    "cron_trigger": ("Cron", "cron"),
    "interval": ("Interval", "every"),
    "join": ("After", "after"),
    "once": ("Once", "at"),
    "phrase": ("Phrase", "when"),
    "rrule_trigger": ("RRule", "rrule"),
}
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names}

__all__ = [
    "FIRES_MAX",
    "GROUP",
    "After",
    "AnyOf",
    "Between",
    "BusinessDay",
    "Cron",
    "Except",
    "Interval",
    "Once",
    "Phrase",
    "RRule",
    "Spec",
    "Trigger",
    "after",
    "any_of",
    "at",
    "between",
    "business_day",
    "cron",
    "every",
    "except_",
    "parse_trigger",
    "read_stored",
    "rrule",
    "when",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"horarium.triggers.{_MODULE_OF[name]}"), name)
