"""A scheduler on a store in memory, with real threads and the real clock; everything is waited for with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from horarium import Scheduler
from horarium.model import Run, State

PATIENCE = 20.0
ONCE = {"retry": {"attempts_max": 1}}


async def until(happened: Callable[[], Any], patience: float = PATIENCE) -> None:
    """Return once it has happened."""
    async with asyncio.timeout(patience):
        while not happened():
            await asyncio.sleep(0.01)


async def ended(scheduler: Scheduler, run: Run, patience: float = PATIENCE) -> Run:
    """The run, once it is finished."""
    async with asyncio.timeout(patience):
        while not (run := await scheduler.get_run(run.id)).finished:
            await asyncio.sleep(0.01)
    return run


async def done(scheduler: Scheduler, name: str, args: dict[str, Any] | None = None, **how: Any) -> Run:
    """Enqueue a run that has one attempt, and wait for its end."""
    return await ended(scheduler, await scheduler.enqueue(name, args, **{**ONCE, **how}))


async def becomes(scheduler: Scheduler, run: Run, state: State) -> Run:
    """The run, once it is in that state."""
    async with asyncio.timeout(PATIENCE):
        while (run := await scheduler.get_run(run.id)).state is not state:
            await asyncio.sleep(0.01)
    return run


@pytest.fixture
async def scheduler() -> AsyncIterator[Scheduler]:
    """Open, not started: a test registers its handlers, and starts it."""
    async with Scheduler("memory://", handler_concurrency=4) as scheduler:
        yield scheduler
