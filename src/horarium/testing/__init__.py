"""For tests of programs on Horarium, and of Horarium itself.

    from horarium.testing import assert_enqueued, perform, travel

docs/testing.md describes these; beside them there are a clock to move by hand, values, faults, and the contracts. Names
are imported when they are first used. Only `testing.contract` and `testing.plugin` need pytest, and only they import
it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horarium.testing.asserting import assert_enqueued, assert_not_enqueued, enqueued
    from horarium.testing.clock import ManualClock
    from horarium.testing.faults import Fault, FaultyStore, by_chance, by_script
    from horarium.testing.performing import perform
    from horarium.testing.swapping import in_memory
    from horarium.testing.travelling import travel
    from horarium.testing.values import NOW, a_change, a_finished_run, a_job, a_run, completed

_PLACES = {
    "clock": ("ManualClock",),
    "asserting": ("assert_enqueued", "assert_not_enqueued", "enqueued"),
    "faults": ("Fault", "FaultyStore", "by_chance", "by_script"),
    "performing": ("perform",),
    "swapping": ("in_memory",),
    "travelling": ("travel",),
    "values": ("NOW", "a_change", "a_finished_run", "a_job", "a_run", "completed"),
}
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


__all__ = [
    "NOW",
    "Fault",
    "FaultyStore",
    "ManualClock",
    "a_change",
    "a_finished_run",
    "a_job",
    "a_run",
    "assert_enqueued",
    "assert_not_enqueued",
    "by_chance",
    "by_script",
    "completed",
    "enqueued",
    "in_memory",
    "perform",
    "travel",
]
