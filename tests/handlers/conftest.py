"""A scheduler on a store in memory, with real threads and the real clock, unless a test lets more time pass."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from horarium import Scheduler
from horarium.library.values import Run
from tests.passing import PassingClock
from tests.waiting import until

ONCE: dict[str, Any] = {"retry": {"attempts_max": 1}}


async def ended(scheduler: Scheduler, run: Run) -> Run:
    """The run, once it is finished."""

    async def finished() -> Run | None:
        found = await scheduler.get_run(run.id)
        return found if found.finished else None

    found: Run = await until(finished, what=f"the end of {run.id}")
    return found


async def done(scheduler: Scheduler, name: str, args: dict[str, Any] | None = None, **how: Any) -> Run:
    """Enqueue a run that has one attempt, and wait for its end."""
    return await ended(scheduler, await scheduler.enqueue(name, args, **{**ONCE, **how}))


@pytest.fixture
def clock() -> PassingClock:
    return PassingClock()


@pytest.fixture
async def scheduler(clock: PassingClock) -> AsyncIterator[Scheduler]:
    """Open, not started: a test registers its handlers, and starts it."""
    async with Scheduler("memory://", handler_concurrency=4, clock=clock) as scheduler:
        yield scheduler
