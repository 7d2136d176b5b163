"""Horarium: a durable, distributed job scheduler.

from horarium import Scheduler, cron, rrule, every, at, when
"""

from __future__ import annotations

from horarium.delivery.handler import Defer, Discard, Retry, RunContext
from horarium.errors import (
    Conflict,
    HorariumError,
    InvalidJob,
    InvalidRequest,
    InvalidSetting,
    InvalidTrigger,
    LeaseLost,
    NotFound,
    StoreUnavailable,
)
from horarium.scheduler import Scheduler
from horarium.triggers import Trigger, any_of, at, between, cron, every, except_, when

__all__ = [
    "Conflict",
    "Defer",
    "Discard",
    "HorariumError",
    "InvalidJob",
    "InvalidRequest",
    "InvalidSetting",
    "InvalidTrigger",
    "LeaseLost",
    "NotFound",
    "Retry",
    "RunContext",
    "Scheduler",
    "StoreUnavailable",
    "Trigger",
    "any_of",
    "at",
    "between",
    "cron",
    "every",
    "except_",
    "when",
]
