"""A scheduler belongs to one event loop, and says so where another one calls it; it is opened and closed there once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from horarium import Scheduler, SyncScheduler, every
from horarium.errors import Conflict
from horarium.stores.memory import MemoryStore

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
    with pytest.raises(Conflict, match=r"was started on another event loop; .*; in tests, horarium_memory gives each"):
        asyncio.run(started())


class ClosesAtRelease:
    """A lock; the first time that it is released, the scheduler is closed by somebody else before anything else is
    done."""

    def __init__(self, scheduler: SyncScheduler) -> None:
        self._lock, self._scheduler = threading.Lock(), scheduler
        self.waits = True

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()
        if self.waits:
            self.waits = False
            self._scheduler.close()


def test_a_call_that_meets_a_close_is_answered_or_refused() -> None:
    """It neither fails deep inside, nor waits for ever for an event loop that is over."""
    scheduler = SyncScheduler("memory://")
    scheduler.open()
    scheduler._lock = ClosesAtRelease(scheduler)  # type: ignore[assignment]
    with suppress(Conflict):
        scheduler.stats()
    with pytest.raises(Conflict, match="this scheduler is closed"):
        scheduler.stats()


class Opened(MemoryStore):
    """Notes when it is opened and closed, which takes a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[str] = []

    async def open(self) -> None:
        self.noted.append("opens")
        await asyncio.sleep(0)
        await super().open()
        self.noted.append("is open")

    async def close(self) -> None:
        self.noted.append("closes")
        await super().close()


async def test_calls_that_come_together_open_it_once_and_a_close_among_them_closes_it() -> None:
    store = Opened()
    scheduler = Scheduler(store)
    await asyncio.gather(scheduler.open(), scheduler.open(), scheduler.close())
    assert store.noted == ["opens", "is open", "closes"]
    assert scheduler.loop is None
