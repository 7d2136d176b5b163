"""Horarium: a durable, distributed job scheduler.

from horarium import Scheduler, cron, rrule, every, at, when

Names are imported when they are first used: the command line and the client start without the scheduler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from horarium.delivery.context import RunContext
    from horarium.delivery.handler import Defer, Discard, Retry
    from horarium.errors import (
        Conflict,
        HorariumError,
        InvalidJob,
        InvalidRequest,
        InvalidSetting,
        InvalidTrigger,
        LeaseLost,
        NotFound,
        StateConflict,
        StoreUnavailable,
        TooExpensive,
        UnknownArgument,
        WrongArguments,
    )
    from horarium.library.declaring import Declared, job
    from horarium.library.scheduler import Scheduler
    from horarium.library.sync import SyncScheduler
    from horarium.library.values import Job, Page, Run
    from horarium.policies import CatchUp, Concurrency, Overlap, Retention, RetryPolicy, Timeouts
    from horarium.triggers import Trigger, after, any_of, at, between, business_day, cron, every, except_, rrule, when

_PLACES = {
    "horarium.library.sync": ("SyncScheduler",),
    "horarium.delivery.context": ("RunContext",),
    "horarium.delivery.handler": ("Defer", "Discard", "Retry"),
    "horarium.errors": (
        "Conflict", "HorariumError", "InvalidJob", "InvalidRequest", "InvalidSetting", "InvalidTrigger", "LeaseLost",
        "NotFound", "StateConflict", "StoreUnavailable", "TooExpensive", "UnknownArgument", "WrongArguments",
    ),
    "horarium.library.declaring": ("Declared", "job"),
    "horarium.library.scheduler": ("Scheduler",),
    "horarium.library.values": ("Job", "Page", "Run"),
    "horarium.policies": ("CatchUp", "Concurrency", "Overlap", "Retention", "RetryPolicy", "Timeouts"),
    "horarium.triggers": (
        "Trigger", "after", "any_of", "at", "between", "business_day", "cron", "every", "except_", "rrule", "when",
    ),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("horarium.model.version").version()
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})


__all__ = [
    "CatchUp",
    "Concurrency",
    "Conflict",
    "Declared",
    "Defer",
    "Discard",
    "HorariumError",
    "InvalidJob",
    "InvalidRequest",
    "InvalidSetting",
    "InvalidTrigger",
    "Job",
    "LeaseLost",
    "NotFound",
    "Overlap",
    "Page",
    "Retention",
    "Retry",
    "RetryPolicy",
    "Run",
    "RunContext",
    "Scheduler",
    "StateConflict",
    "StoreUnavailable",
    "SyncScheduler",
    "Timeouts",
    "TooExpensive",
    "Trigger",
    "UnknownArgument",
    "WrongArguments",
    "after",
    "any_of",
    "at",
    "between",
    "business_day",
    "cron",
    "every",
    "except_",
    "job",
    "rrule",
    "when",
]
