"""A scheduler belongs to one event loop, and says so where another one calls it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from horarium import Scheduler, every
from horarium.errors import Conflict

CALLS: dict[str, Callable[[Scheduler], Awaitable[Any]]] = {
    "open": lambda scheduler: scheduler.open(),
    "start": lambda scheduler: scheduler.start(),
    "stop": lambda scheduler: scheduler.stop(),
    "close": lambda scheduler: scheduler.close(),
    "run_forever": lambda scheduler: scheduler.run_until_asked(),
    "add_job": lambda scheduler: scheduler.add_job("a", every("1h"), queue="q"),
    "enqueue": lambda scheduler: scheduler.enqueue("work", delay=timedelta(hours=1)),
    "list_runs": lambda scheduler: scheduler.list_runs(),
    "stats": lambda scheduler: scheduler.stats(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_from_another_event_loop_is_refused_in_a_sentence(
    call: Callable[[Scheduler], Awaitable[Any]], tmp_path: Path
) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path}/s.db")
    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(scheduler.open())

        async def elsewhere() -> None:
            await call(scheduler)

        with pytest.raises(Conflict, match=r"this Scheduler is open on another event loop; call it there, make one"):
            second.run(elsewhere())
        first.run(scheduler.close())


def test_one_that_was_closed_is_opened_on_another_event_loop_but_not_started(tmp_path: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path}/s.db")

    async def looked() -> int:
        async with scheduler:
            return (await scheduler.stats()).jobs

    async def started() -> None:
        async with scheduler:
            await scheduler.start()

    assert asyncio.run(looked()) == 0
    asyncio.run(started())
    assert asyncio.run(looked()) == 0
    with pytest.raises(Conflict, match="this Scheduler was started on another event loop"):
        asyncio.run(started())
