"""Attempts that end before their time: time limits and cancels, of async work and of real threads."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from functools import partial
from operator import contains

import pytest

from horarium import LeaseLost, RunContext, Scheduler
from horarium.model import State
from horarium.services.loop.service import Health
from tests.handlers.conftest import ONCE, done, ended
from tests.handlers.limits import LIMIT, LIMIT_SECONDS, out_of_time, said, unstoppable
from tests.passing import PassingClock
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

# ---- time limits --------------------------------------------------------------------------------------------------


async def test_an_async_handler_is_cancelled_at_its_time_limit_and_is_over(
    scheduler: Scheduler, clock: PassingClock
) -> None:
    begun: list[str] = []
    cleaned: list[str] = []

    @scheduler.handler()
    async def slow(run: RunContext) -> None:
        begun.append(run.id)
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(run.id)

    await scheduler.start()
    run = await out_of_time(scheduler, clock, "slow", begun)
    assert (run.state, run.error) == (State.FAILED, "timed out: not done within 600 s; its lease was given up")
    await until(lambda: cleaned == [run.id])


async def test_a_time_limit_is_tried_again_as_the_policy_says_and_told_in_the_history(
    scheduler: Scheduler, clock: PassingClock
) -> None:
    begun: list[int] = []

    @scheduler.handler()
    async def slow(run: RunContext) -> str:
        begun.append(run.attempt)
        if run.attempt == 1:
            await asyncio.Event().wait()
        return "second"

    await scheduler.start()
    run = await out_of_time(scheduler, clock, "slow", begun, retry={"attempts_max": 2, "backoff_seconds": 0})
    assert (run.state, run.attempt, begun) == (State.COMPLETED, 2, [1, 2])
    assert "attempt 1 failed: timed out: not done within 600 s; its lease was given up" in said(run)


async def test_an_async_handler_that_swallows_its_cancellation_changes_nothing_and_harms_nobody(
    scheduler: Scheduler, clock: PassingClock
) -> None:
    await scheduler.close()
    async with Scheduler("memory://", handler_concurrency=1, clock=clock) as scheduler:
        begun: list[str] = []
        out: list[bool] = []

        @scheduler.handler()
        async def stubborn(run: RunContext) -> str:
            begun.append(run.id)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.sleep(0.05)
            with pytest.raises(LeaseLost):
                await run.heartbeat()
            out.append(bool(run.cancelled))
            return "too late"

        @scheduler.handler()
        async def grouped(run: RunContext) -> str:
            """A leftover cancellation of its task would show here."""
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(fail())
            except ExceptionGroup:
                return "as it should"
            return "?"

        async def fail() -> None:
            raise ValueError

        await scheduler.start()
        first = await scheduler.enqueue("stubborn", **LIMIT, **ONCE)
        await until(lambda: begun)
        second = await scheduler.enqueue("grouped", **ONCE)
        clock.let_pass(LIMIT_SECONDS)
        run = await ended(scheduler, first)
        assert (run.state, run.result) == (State.FAILED, None)
        assert (await ended(scheduler, second)).result == b'"as it should"'
        assert out == [True]


async def test_a_thread_that_looks_is_told_and_its_place_is_free_again(
    scheduler: Scheduler, clock: PassingClock
) -> None:
    begun: list[str] = []
    seen: list[bool] = []

    @scheduler.handler()
    def polite(run: RunContext) -> None:
        assert run.deadline is not None
        assert not run.cancelled.is_set()
        begun.append(run.id)
        seen.append(run.cancelled.wait(PATIENCE))
        with pytest.raises(LeaseLost):
            run.progress("too late")

    await scheduler.start()
    run = await out_of_time(scheduler, clock, "polite", begun)
    assert "timed out" in (run.error or "")
    await until(lambda: seen == [True])
    await until(lambda: unstoppable(scheduler) == 0)


async def test_a_thread_that_does_not_stop_loses_its_lease_and_keeps_its_place(
    scheduler: Scheduler, clock: PassingClock, caplog: pytest.LogCaptureFixture
) -> None:
    await scheduler.close()
    caplog.set_level(logging.WARNING, "horarium")
    release = threading.Event()
    begun: list[str] = []
    async with Scheduler("memory://", handler_concurrency=2, clock=clock) as scheduler:

        @scheduler.handler()
        def stuck(run: RunContext) -> str:
            begun.append(run.id)
            release.wait(PATIENCE)
            return "too late"

        @scheduler.handler()
        def quick(run: RunContext) -> str:
            return "done"

        await scheduler.start()
        first = await out_of_time(scheduler, clock, "stuck", begun)
        assert "its lease was given up" in said(first)
        await until(lambda: unstoppable(scheduler) == 1)
        assert f"run {first.id} of handler/stuck: it does not stop (timeout); its lease is given up" in caplog.text
        assert (await done(scheduler, "quick")).state is State.COMPLETED, "the other place goes on"

        second = await out_of_time(scheduler, clock, "stuck", begun)
        await until(lambda: unstoppable(scheduler) == 2)
        waiting = await scheduler.enqueue("quick", **ONCE)
        health: Health = scheduler._runtime.health
        await until(lambda: "handlers" in health.problems())
        assert "every place (2) is taken by work that does not stop: handler/stuck (2)" in health.problems()["handlers"]
        assert (await scheduler.get_run(waiting.id)).state is State.PENDING, "left for other nodes"
        assert sum(thread.name.startswith("horarium-handler") for thread in threading.enumerate()) <= 3

        release.set()
        assert (await ended(scheduler, waiting)).state is State.COMPLETED
        await until(lambda: not health.problems())
        await until(lambda: unstoppable(scheduler) == 0)
        for run in (first, second):
            assert (await scheduler.get_run(run.id)).result is None, "what came too late changed nothing"


async def test_stuck_threads_of_a_limited_handler_block_only_that_handler(
    scheduler: Scheduler, clock: PassingClock
) -> None:
    release = threading.Event()
    begun: list[str] = []

    @scheduler.handler(concurrency=1)
    def stuck(run: RunContext) -> None:
        begun.append(run.id)
        release.wait(PATIENCE)

    @scheduler.handler()
    async def quick(run: RunContext) -> None: ...

    await scheduler.start()
    await out_of_time(scheduler, clock, "stuck", begun)
    await until(lambda: unstoppable(scheduler) == 1)
    waiting = await scheduler.enqueue("stuck")
    for _ in range(5):
        assert (await done(scheduler, "quick")).state is State.COMPLETED
    assert (await scheduler.get_run(waiting.id)).state is State.PENDING
    release.set()
    assert (await ended(scheduler, waiting)).state is State.COMPLETED


# ---- cancels ------------------------------------------------------------------------------------------------------


async def test_a_cancel_reaches_async_work_and_threads_alike(scheduler: Scheduler) -> None:
    begun: list[str] = []

    @scheduler.handler("async")
    async def one(run: RunContext) -> None:
        assert not run.cancelled
        assert not await run.cancelled.wait(0.01)
        begun.append(run.id)
        assert await run.cancelled.wait(PATIENCE)
        raise RuntimeError("stopped")

    @scheduler.handler("thread")
    def other(run: RunContext) -> None:
        assert not run.cancelled
        assert not run.cancelled.wait(0.01)
        begun.append(run.id)
        assert run.cancelled.wait(PATIENCE)
        assert run.cancelled.is_set()
        raise RuntimeError("stopped")

    await scheduler.start()
    for name in ("async", "thread"):
        run = await scheduler.enqueue(name)
        await until(partial(contains, begun, run.id))
        await scheduler.cancel_run(run.id)
        run = await ended(scheduler, run)
        assert (run.state, run.attempt) == (State.CANCELLED, 1), name


@pytest.mark.parametrize("look", ["is_set", "wait"])
async def test_a_handler_that_returns_once_it_has_seen_the_cancel_has_stopped(scheduler: Scheduler, look: str) -> None:
    begun: list[str] = []

    @scheduler.handler("async")
    async def one(run: RunContext) -> str:
        begun.append(run.id)
        while not run.cancelled.is_set() if look == "is_set" else not await run.cancelled.wait(PATIENCE):
            await asyncio.sleep(0.01)
        return "stopped early"

    @scheduler.handler("thread")
    def other(run: RunContext) -> str:
        begun.append(run.id)
        while not run.cancelled.is_set() if look == "is_set" else not run.cancelled.wait(PATIENCE):
            time.sleep(0.01)
        return "stopped early"

    await scheduler.start()
    for name in ("async", "thread"):
        run = await scheduler.enqueue(name)
        await until(partial(contains, begun, run.id))
        await scheduler.cancel_run(run.id)
        run = await ended(scheduler, run)
        assert (run.state, run.error) == (State.CANCELLED, "its handler stopped when asked to"), name


async def test_work_that_was_done_before_it_saw_the_cancel_is_done(scheduler: Scheduler) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @scheduler.handler()
    def deaf(run: RunContext) -> str:
        begun.set()
        go_on.wait(PATIENCE)
        return "done"

    await scheduler.start()
    run = await scheduler.enqueue("deaf")
    await until(begun.is_set)
    assert (await scheduler.cancel_run(run.id)).state is State.CANCELLING
    go_on.set()
    run = await ended(scheduler, run)
    assert (run.state, run.result) == (State.COMPLETED, b'"done"')
