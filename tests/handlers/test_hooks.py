"""What a program has called at the start and at the end of its scheduler, and around its handlers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from horarium import InvalidJob, RunContext, Scheduler
from tests.handlers.conftest import done


async def no_context(run: RunContext) -> None: ...


async def begins_and_ends() -> AsyncIterator[None]:
    yield


async def test_hooks_are_called_at_the_start_and_at_the_end(scheduler: Scheduler) -> None:
    seen: list[str] = []

    @scheduler.on_startup
    async def begin() -> None:
        seen.append(f"begin, running: {scheduler._runtime.running}")

    @scheduler.on_shutdown
    def end() -> None:
        seen.append(f"end, running: {scheduler._runtime.running}")

    await scheduler.start()
    await scheduler.start()
    await scheduler.stop()
    await scheduler.stop()
    assert seen == ["begin, running: False", "end, running: False"]


async def test_a_hook_that_fails_keeps_nothing_open() -> None:
    scheduler, seen = Scheduler("memory://"), list[str]()

    @scheduler.on_shutdown
    def fails() -> None:
        raise RuntimeError("the first")

    @scheduler.on_shutdown
    async def closes() -> None:
        seen.append("the second")

    with pytest.raises(RuntimeError, match="the first"):
        async with scheduler:
            await scheduler.start()
    assert (seen, scheduler.loop) == (["the second"], None)


@pytest.mark.parametrize("wrong", [5, no_context, begins_and_ends], ids=["number", "no context", "yields"])
async def test_what_can_be_no_hook_and_no_context_is_refused(scheduler: Scheduler, wrong: Any) -> None:
    if wrong is not begins_and_ends:
        with pytest.raises(InvalidJob, match="which yields once"):
            scheduler.around(wrong)
    if wrong is not no_context:
        for decorator in (scheduler.on_startup, scheduler.on_shutdown):
            with pytest.raises(InvalidJob, match="which does not yield"):
                decorator(wrong)


async def test_a_context_manager_made_of_a_function_is_a_context(scheduler: Scheduler) -> None:
    seen: list[str] = []

    @scheduler.around
    @contextlib.contextmanager
    def around(run: RunContext) -> Iterator[None]:
        seen.append("begins")
        yield
        seen.append("ends")

    @scheduler.handler()
    async def work() -> None:
        seen.append("works")

    await scheduler.start()
    assert (await done(scheduler, "work")).state == "completed"
    assert seen == ["begins", "works", "ends"]
