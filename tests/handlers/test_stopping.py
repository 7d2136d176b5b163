"""Attempts that end before their time: time limits, cancels, the end of the node; of async work and of real threads."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from horarium import Defer, Discard, LeaseLost, Retry, RunContext, Scheduler
from horarium.model import Run, State
from horarium.services.service import Health
from tests.handlers.conftest import ONCE, becomes, done, ended, until

LIMIT = {"timeouts": {"execution_seconds": 0.3}}


def said(run: Run) -> str:
    return " / ".join([*(event.message for event in run.history), run.error or ""])


# ---- time limits ------------------------------------------------------------------------------------------------


async def test_an_async_handler_is_cancelled_at_its_time_limit_and_is_over(scheduler: Scheduler) -> None:
    cleaned: list[str] = []

    @scheduler.handler()
    async def slow(run: RunContext) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append(run.id)

    await scheduler.start()
    begun = time.monotonic()
    run = await done(scheduler, "slow", **LIMIT)
    assert (run.state, run.error) == (State.FAILED, "timed out: not done within 0.3 s; its lease was given up")
    assert time.monotonic() - begun < 10
    await until(lambda: cleaned == [run.id])


async def test_a_time_limit_is_tried_again_as_the_policy_says_and_told_in_the_history(scheduler: Scheduler) -> None:
    @scheduler.handler()
    async def slow(run: RunContext) -> str:
        if run.attempt == 1:
            await asyncio.sleep(60)
        return "second"

    await scheduler.start()
    run = await done(scheduler, "slow", retry={"attempts_max": 2, "backoff_seconds": 0}, **LIMIT)
    assert (run.state, run.attempt) == (State.COMPLETED, 2)
    assert "attempt 1 failed: timed out: not done within 0.3 s; its lease was given up" in said(run)


async def test_an_async_handler_that_swallows_its_cancellation_changes_nothing_and_harms_nobody(
    scheduler: Scheduler,
) -> None:
    await scheduler.close()
    async with Scheduler("memory://", handler_concurrency=1) as scheduler:
        out: list[bool] = []

        @scheduler.handler()
        async def stubborn(run: RunContext) -> str:
            try:
                await asyncio.sleep(60)
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
        second = await scheduler.enqueue("grouped", **ONCE)
        run = await ended(scheduler, first)
        assert (run.state, run.result) == (State.FAILED, None)
        assert (await ended(scheduler, second)).result == b'"as it should"'
        assert out == [True]


async def test_a_thread_that_looks_is_told_and_its_place_is_free_again(scheduler: Scheduler) -> None:
    seen: list[tuple[bool, float]] = []

    @scheduler.handler()
    def polite(run: RunContext) -> None:
        begun = time.monotonic()
        assert run.deadline is not None
        seen.append((run.cancelled.wait(30), time.monotonic() - begun))
        with pytest.raises(LeaseLost):
            run.progress("too late")

    await scheduler.start()
    run = await done(scheduler, "polite", **LIMIT)
    assert "timed out" in (run.error or "")
    await until(lambda: len(seen) == 1)
    assert seen[0][0] is True
    assert 0.2 < seen[0][1] < 15
    assert strays(scheduler) == 0


async def test_a_thread_that_does_not_stop_loses_its_lease_and_keeps_its_place(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    await scheduler.close()
    caplog.set_level(logging.WARNING, "horarium")
    release = threading.Event()
    async with Scheduler("memory://", handler_concurrency=2) as scheduler:

        @scheduler.handler()
        def stuck(run: RunContext) -> str:
            release.wait(60)
            return "too late"

        @scheduler.handler()
        def quick(run: RunContext) -> str:
            return "done"

        await scheduler.start()
        first = await done(scheduler, "stuck", **LIMIT)
        assert "its lease was given up" in said(first)
        await until(lambda: strays(scheduler) == 1)
        assert f"run {first.id} of handler/stuck: it does not stop (timeout); its lease is given up" in caplog.text
        assert (await done(scheduler, "quick")).state is State.COMPLETED, "the other place goes on"

        second = await done(scheduler, "stuck", **LIMIT)
        await until(lambda: strays(scheduler) == 2)
        waiting = await scheduler.enqueue("quick", **ONCE)
        health: Health = scheduler._runtime.health
        await until(lambda: "handlers" in health.problems())
        assert "every place (2) is taken by work that does not stop: handler/stuck (2)" in health.problems()["handlers"]
        assert (await scheduler.get_run(waiting.id)).state is State.PENDING, "left for other nodes"
        assert sum(thread.name.startswith("horarium-handler") for thread in threading.enumerate()) <= 3

        release.set()
        assert (await ended(scheduler, waiting)).state is State.COMPLETED
        await until(lambda: not health.problems())
        assert strays(scheduler) == 0
        for run in (first, second):
            assert (await scheduler.get_run(run.id)).result is None, "what came too late changed nothing"


def strays(scheduler: Scheduler) -> int:
    """Places taken by work that does not stop."""
    return sum(dispatcher.strays for dispatcher in scheduler._runtime._dispatchers)


async def test_stuck_threads_of_a_limited_handler_block_only_that_handler(scheduler: Scheduler) -> None:
    release = threading.Event()

    @scheduler.handler(concurrency=1)
    def stuck(run: RunContext) -> None:
        release.wait(60)

    @scheduler.handler()
    async def quick(run: RunContext) -> None: ...

    await scheduler.start()
    await done(scheduler, "stuck", **LIMIT)
    await until(lambda: strays(scheduler) == 1)
    waiting = await scheduler.enqueue("stuck")
    for _ in range(5):
        assert (await done(scheduler, "quick")).state is State.COMPLETED
    assert (await scheduler.get_run(waiting.id)).state is State.PENDING
    release.set()
    assert (await ended(scheduler, waiting)).state is State.COMPLETED


# ---- cancels ----------------------------------------------------------------------------------------------------


async def test_a_cancel_reaches_async_work_and_threads_alike(scheduler: Scheduler) -> None:
    @scheduler.handler("async")
    async def one(run: RunContext) -> None:
        assert not run.cancelled
        assert not await run.cancelled.wait(0.01)
        assert await run.cancelled.wait(30)
        raise RuntimeError("stopped")

    @scheduler.handler("thread")
    def other(run: RunContext) -> None:
        assert not run.cancelled
        assert not run.cancelled.wait(0.01)
        assert run.cancelled.wait(30)
        assert run.cancelled.is_set()
        raise RuntimeError("stopped")

    await scheduler.start()
    for name in ("async", "thread"):
        run = await becomes(scheduler, await scheduler.enqueue(name), State.RUNNING)
        await scheduler.cancel_run(run.id)
        run = await ended(scheduler, run, 10)
        assert (run.state, run.attempt) == (State.CANCELLED, 1), name


@pytest.mark.parametrize("look", ["is_set", "wait"])
async def test_a_handler_that_returns_once_it_has_seen_the_cancel_has_stopped(scheduler: Scheduler, look: str) -> None:
    @scheduler.handler("async")
    async def one(run: RunContext) -> str:
        while not run.cancelled.is_set() if look == "is_set" else not await run.cancelled.wait(30):
            await asyncio.sleep(0.01)
        return "stopped early"

    @scheduler.handler("thread")
    def other(run: RunContext) -> str:
        while not run.cancelled.is_set() if look == "is_set" else not run.cancelled.wait(30):
            time.sleep(0.01)
        return "stopped early"

    await scheduler.start()
    for name in ("async", "thread"):
        run = await becomes(scheduler, await scheduler.enqueue(name), State.RUNNING)
        await scheduler.cancel_run(run.id)
        run = await ended(scheduler, run, 10)
        assert (run.state, run.error) == (State.CANCELLED, "its handler stopped when asked to"), name


async def test_work_that_was_done_before_it_saw_the_cancel_is_done(scheduler: Scheduler) -> None:
    go_on = threading.Event()

    @scheduler.handler()
    def deaf(run: RunContext) -> str:
        go_on.wait(30)
        return "done"

    await scheduler.start()
    run = await becomes(scheduler, await scheduler.enqueue("deaf"), State.RUNNING)
    assert (await scheduler.cancel_run(run.id)).state is State.CANCELLING
    go_on.set()
    run = await ended(scheduler, run)
    assert (run.state, run.result) == (State.COMPLETED, b'"done"')


# ---- what handlers say ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_handlers_of_both_kinds_say_the_same_things(scheduler: Scheduler, kind: str) -> None:
    def act(run: RunContext, what: str) -> object:
        match what:
            case "retry" if run.attempt == 1:
                raise Retry("not yet", after=timedelta(seconds=0))
            case "discard":
                raise Discard("never")
            case "defer" if datetime.now(UTC) < run.fire_at + timedelta(seconds=0.5):
                raise Defer(datetime.now(UTC) + timedelta(seconds=0.1))
            case "exit":
                sys.exit(3)
            case "stop":
                raise StopIteration
            case "wrong":
                return object()
        return {"attempt": run.attempt}

    if kind == "async":

        @scheduler.handler("act")
        async def perform(run: RunContext, what: str) -> object:
            return act(run, what)
    else:
        scheduler.add_handler("act", act)
    await scheduler.start()
    two = {"retry": {"attempts_max": 2}}
    runs = {
        what: await scheduler.enqueue("act", {"what": what}, **(two if what == "retry" else ONCE))  # type: ignore[arg-type]
        for what in ("retry", "discard", "defer", "exit", "stop", "wrong", "nothing")
    }
    over = {what: await ended(scheduler, run) for what, run in runs.items()}
    assert (over["retry"].result, over["retry"].error) == (b'{"attempt":2}', None)
    assert (over["discard"].state, over["discard"].error) == (State.FAILED, "never")
    assert (over["defer"].result, over["defer"].attempt) == (b'{"attempt":1}', 1)
    assert over["exit"].error == "it called exit(3)"
    assert "StopIteration" in (over["stop"].error or "")
    assert (over["wrong"].error or "").startswith("its result can't be written as JSON")
    assert over["nothing"].state is State.COMPLETED


async def test_a_plain_function_may_return_a_coroutine(scheduler: Scheduler) -> None:
    async def inner() -> int:
        await asyncio.sleep(0)
        return 5

    scheduler.add_handler("outer", lambda run: inner())
    await scheduler.start()
    assert (await done(scheduler, "outer")).result == b"5"


async def test_progress_and_log_name_the_run_in_both_worlds(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "horarium.handler")

    @scheduler.handler("async")
    async def one(run: RunContext) -> None:
        await run.progress({"done": 1})
        await run.heartbeat()
        run.log.info("half of %s", "it")

    @scheduler.handler("thread")
    def other(run: RunContext) -> None:
        run.progress({"done": 1})
        run.heartbeat()
        run.log.info("half of %s", "it")
        with pytest.raises(ValueError, match="progress: can't be written as JSON"):
            run.progress(object())
        with pytest.raises(ValueError, match="progress: 70,002 bytes; at most 65,536"):
            run.progress("x" * 70_000)

    await scheduler.start()
    for name in ("async", "thread"):
        run = await done(scheduler, name)
        assert (run.state, run.progress) == (State.COMPLETED, b'{"done":1}')
        assert f"{name} {run.id} attempt 1: half of it" in caplog.text
        record = caplog.records[-1]
        assert (record.__dict__["run"], record.__dict__["attempt"], record.__dict__["handler"]) == (run.id, 1, name)


# ---- the end of the node ----------------------------------------------------------------------------------------


async def test_a_drain_finishes_what_runs_and_gives_back_the_rest(scheduler: Scheduler) -> None:
    go_on = threading.Event()
    begun: list[str] = []

    @scheduler.handler()
    def work(run: RunContext) -> str:
        begun.append(run.id)
        go_on.wait(30)
        return "done"

    ids = await scheduler.enqueue_many("work", [{}] * 20)
    await scheduler.start()
    await until(lambda: len(begun) == 4)
    stopping = asyncio.create_task(scheduler.stop())
    again = asyncio.create_task(scheduler.stop())
    await asyncio.sleep(0.05)
    go_on.set()
    await stopping
    await again
    runs = [await scheduler.get_run(run_id) for run_id in ids]
    assert sorted(run.state for run in runs) == ["completed"] * 4 + ["pending"] * 16
    assert all(run.attempt == 0 for run in runs if run.state is State.PENDING)
    await scheduler.start()
    for run in runs:
        assert (await ended(scheduler, run)).attempt == 1


@pytest.mark.parametrize("kind", ["async", "stubborn", "thread"])
async def test_what_outlasts_the_grace_is_given_back_with_its_attempt(scheduler: Scheduler, kind: str) -> None:
    release, begun = threading.Event(), threading.Event()

    if kind == "thread":

        @scheduler.handler("work")
        def work(run: RunContext) -> str:
            begun.set()
            release.wait(60)
            return "done"
    else:

        @scheduler.handler("work")
        async def perform(run: RunContext) -> str:
            begun.set()
            while not release.is_set():
                try:
                    await asyncio.sleep(0.02)
                except asyncio.CancelledError:
                    if kind == "async":
                        raise
            return "done"

    await scheduler.start()
    run = await scheduler.enqueue("work", retry={"attempts_max": 1})
    await until(begun.is_set)
    before = time.monotonic()
    await scheduler.stop(grace_seconds=0.1)
    assert time.monotonic() - before < 10
    run = await scheduler.get_run(run.id)
    assert (run.state, run.attempt) == (State.PENDING, 0)
    assert "interrupted" in said(run)
    release.set()
    await scheduler.start()
    assert (await ended(scheduler, run)).state is State.COMPLETED


async def test_a_thread_that_returns_once_it_hears_of_the_end_is_begun_again(scheduler: Scheduler) -> None:
    begun = threading.Event()

    @scheduler.handler()
    def work(run: RunContext) -> str:
        begun.set()
        return f"stopped early: {run.cancelled.wait(30)}"

    await scheduler.start()
    run = await scheduler.enqueue("work")
    await until(begun.is_set)
    await scheduler.stop(grace_seconds=0)
    run = await scheduler.get_run(run.id)
    assert (run.state, run.attempt, run.result) == (State.PENDING, 0, None)


async def test_a_thread_that_finishes_in_the_last_moment_has_finished(scheduler: Scheduler) -> None:
    begun, end = threading.Event(), threading.Event()

    @scheduler.handler()
    def work(run: RunContext) -> str:
        begun.set()
        end.wait(30)
        return "done"

    await scheduler.start()
    run = await scheduler.enqueue("work")
    await until(begun.is_set)
    asyncio.get_running_loop().call_later(0.3, end.set)
    await scheduler.stop(grace_seconds=0)
    run = await scheduler.get_run(run.id)
    assert (run.state, run.result) == (State.COMPLETED, b'"done"')


async def test_a_second_request_ends_the_grace(scheduler: Scheduler) -> None:
    begun = asyncio.Event()

    @scheduler.handler()
    async def work(run: RunContext) -> None:
        begun.set()
        await asyncio.sleep(600)

    run = await scheduler.enqueue("work")
    running = asyncio.create_task(scheduler.run_until_asked())
    await begun.wait()
    scheduler.ask_to_stop()
    await asyncio.sleep(0.05)
    assert not running.done(), "the grace is 30 s"
    before = time.monotonic()
    scheduler.ask_to_stop()
    await running
    assert time.monotonic() - before < 10
    assert (await scheduler.get_run(run.id)).state is State.PENDING
