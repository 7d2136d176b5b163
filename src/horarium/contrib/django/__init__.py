"""Horarium as an app of Django: `"horarium.contrib.django"` in INSTALLED_APPS, and in each app a `jobs.py`.

    from horarium.contrib.django import scheduler

    @scheduler.handler()
    def send_receipt(order: int, to: str): ...

`scheduler` is made from `settings.HORARIUM` when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horarium.contrib.django.scheduling import DjangoScheduler

    scheduler: DjangoScheduler


def __getattr__(name: str) -> Any:
    if name != "scheduler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from horarium.contrib.django.scheduling import make_scheduler

    made = globals()["scheduler"] = make_scheduler()
    return made


__all__ = ["scheduler"]
