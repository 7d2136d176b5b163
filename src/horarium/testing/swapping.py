"""Schedulers of a program, on a store in memory for as long as a test lasts. Nothing of theirs reaches the real one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from horarium.clock import Clock
from horarium.errors import InvalidRequest
from horarium.library import scheduler as asynchronous
from horarium.library import sync as synchronous
from horarium.library.home import Home
from horarium.library.scheduler import Scheduler
from horarium.library.sync import SyncScheduler
from horarium.model import Run
from horarium.node.runtime import Runtime
from horarium.ports import NOTHING_ALONG, Along, Placeholders
from horarium.stores.memory import MemoryStore
from horarium.stores.wakeups import LocalSignal

AnyScheduler = Scheduler | SyncScheduler


class TestStore(MemoryStore):
    """A store in memory that takes a connection of the program's too: the run is there at once, also where that
    connection's transaction is rolled back."""

    __test__ = False

    async def add_runs_in(self, connection: Any, runs: Sequence[Run], along: Along = NOTHING_ALONG) -> list[bool]:
        return await self.add_runs(runs, along)

    def add_runs_sql(
        self, runs: Sequence[Run], placeholders: Placeholders = "$1", along: Along = NOTHING_ALONG
    ) -> tuple[str, tuple[Any, ...]]:
        at_once(self.add_runs(runs, along))
        return "SELECT 1", ()


def at_once(work: Any) -> Any:
    """The answer of a coroutine that waits for nothing, as those of a store in memory."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("it waits for something")


def is_in_memory(scheduler: SyncScheduler) -> bool:
    """Whether a test has moved it to a store in memory."""
    return isinstance(scheduler._scheduler._runtime.store, TestStore)


def store_of(scheduler: AnyScheduler) -> MemoryStore:
    """The store in memory that a scheduler is on. Raises InvalidRequest."""
    if isinstance(scheduler, SyncScheduler):
        scheduler._prepare()
        scheduler = scheduler._scheduler
    store = scheduler._runtime.store
    if not isinstance(store, MemoryStore):
        raise InvalidRequest(
            "this scheduler is on a real store, and tests look into one in memory: use `in_memory(scheduler)`, "
            "`travel(scheduler, ...)` or the fixture `horarium_memory`"
        )
    return store


def all_schedulers() -> list[AnyScheduler]:
    """Every scheduler that the program has made."""
    return [*asynchronous.MADE, *synchronous.MADE]


@contextmanager
def in_memory(*schedulers: AnyScheduler, clock: Clock | None = None, **options: Any) -> Iterator[None]:
    """Have these schedulers (left out: all that there are) on empty stores in memory until the end of the block, with
    their handlers and their jobs. `options`: those of `Scheduler`, where they are to differ."""
    with ExitStack() as stack:
        for each in schedulers or all_schedulers():
            if not isinstance(each, SyncScheduler):
                stack.enter_context(_swapped(each, clock, options))
                continue
            if schedulers:  # else its scheduler has had its own turn
                stack.enter_context(_swapped(each._scheduler, clock, options))
            stack.enter_context(_own_thread(each))
        yield


@contextmanager
def _swapped(scheduler: Scheduler, clock: Clock | None, options: dict[str, Any]) -> Iterator[None]:
    before, program = scheduler._runtime, scheduler._program
    kept = before, scheduler._home, scheduler._stopped, program.declared
    runtime = Runtime(
        TestStore(getattr(before.store, "namespace", "default")),
        replace(before.options, **{"buses": {}, **options}),
        clock=clock,
        signal=LocalSignal(),
    )
    runtime.handlers = before.handlers
    scheduler._runtime, scheduler._home, program.declared = runtime, Home(), False
    try:
        yield
    finally:
        scheduler._runtime, scheduler._home, scheduler._stopped, program.declared = kept


@contextmanager
def _own_thread(scheduler: SyncScheduler) -> Iterator[None]:
    """It gets another thread when it is called, which ends with the block."""
    kept = scheduler._thread, scheduler._pid, scheduler._closed
    scheduler._thread, scheduler._closed = None, False
    try:
        yield
    finally:
        try:
            scheduler.close()
        finally:
            scheduler._thread, scheduler._pid, scheduler._closed = kept
