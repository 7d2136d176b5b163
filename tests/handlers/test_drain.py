"""The end of the node: what runs is finished, or given back."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from horarium import RunContext, Scheduler, SyncScheduler
from horarium.model import State
from horarium.ports import Claimed
from horarium.stores.memory import MemoryStore
from tests.handlers.conftest import ended
from tests.handlers.limits import said
from tests.handlers.test_sync import program
from tests.waiting import PATIENCE, TURNS, eventually, until

pytestmark = pytest.mark.slow


async def draining(scheduler: Scheduler) -> None:
    """Wait until the node claims nothing more."""
    assembly = scheduler._runtime._assembly
    assert assembly is not None
    await until(lambda: not any(each._accepting for each in assembly.dispatchers))


def test_a_plain_handler_may_call_until_it_has_ended() -> None:
    """While the scheduler is closed: its drain waits for the handler, which may wait for an answer."""
    scheduler, begun, enqueued = SyncScheduler("memory://"), threading.Event(), list[str]()

    @scheduler.handler()
    def work() -> None:
        begun.set()
        eventually(scheduler._scheduler._stopped.is_set, what="the drain")
        enqueued.append(scheduler.enqueue("more").id)

    with scheduler:
        scheduler.start()
        work.enqueue()
        assert begun.wait(PATIENCE)
    assert len(enqueued) == 1


async def test_a_drain_finishes_what_runs_and_gives_back_the_rest(scheduler: Scheduler) -> None:
    go_on = threading.Event()
    begun: list[str] = []

    @scheduler.handler()
    def work(run: RunContext) -> str:
        begun.append(run.id)
        go_on.wait(PATIENCE)
        return "done"

    ids = await scheduler.enqueue_many("work", [{}] * 20)
    await scheduler.start()
    await until(lambda: len(begun) == 4)
    stopping = asyncio.create_task(scheduler.stop())
    again = asyncio.create_task(scheduler.stop())
    await draining(scheduler)
    go_on.set()
    await stopping
    await again
    runs = [await scheduler.get_run(run_id) for run_id in ids]
    assert sorted(run.state for run in runs) == ["completed"] * 4 + ["pending"] * 16
    assert all(run.attempt == 0 for run in runs if run.state is State.PENDING)
    await scheduler.start()
    for run in runs:
        assert (await ended(scheduler, run)).attempt == 1


class SlowClaims(MemoryStore):
    """What is claimed comes when `answers` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.claimed, self.answers = asyncio.Event(), asyncio.Event()

    async def claim_runs(self, *given: Any) -> Claimed:
        claimed = await super().claim_runs(*given)
        if claimed.runs:
            self.claimed.set()
            await self.answers.wait()
        return claimed


async def test_what_is_being_claimed_as_the_node_stops_is_given_back() -> None:
    store = SlowClaims()
    async with Scheduler(store) as scheduler:
        scheduler.add_handler("work", lambda run: None)
        run = await scheduler.enqueue("work")
        await scheduler.start()
        await store.claimed.wait()
        stopping = asyncio.create_task(scheduler.stop())
        await draining(scheduler)
        for _ in range(TURNS):  # all that a stop does without waiting for the claim
            await asyncio.sleep(0)
        store.answers.set()
        await stopping
        run = await scheduler.get_run(run.id)
        assert (run.state, run.attempt) == (State.PENDING, 0)


@pytest.mark.parametrize("kind", ["async", "stubborn", "thread"])
async def test_what_outlasts_the_grace_is_given_back_with_its_attempt(scheduler: Scheduler, kind: str) -> None:
    release, begun = threading.Event(), threading.Event()

    if kind == "thread":

        @scheduler.handler("work")
        def work(run: RunContext) -> str:
            begun.set()
            release.wait(PATIENCE)
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
    await scheduler.stop(grace_seconds=0.1)
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
        return f"stopped early: {run.cancelled.wait(PATIENCE)}"

    await scheduler.start()
    run = await scheduler.enqueue("work")
    await until(begun.is_set)
    await scheduler.stop(grace_seconds=0)
    run = await scheduler.get_run(run.id)
    assert (run.state, run.attempt, run.result) == (State.PENDING, 0, None)


async def test_a_thread_that_finishes_in_the_last_moment_has_finished(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horarium.delivery.handler.THREAD_PATIENCE_SECONDS", PATIENCE)
    begun, end = threading.Event(), threading.Event()

    @scheduler.handler()
    def work(run: RunContext) -> str:
        begun.set()
        end.wait(PATIENCE)
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
    await draining(scheduler)
    assert not running.done(), "the grace is 30 s"
    before = time.monotonic()
    scheduler.ask_to_stop()
    await running
    assert time.monotonic() - before < 25
    assert (await scheduler.get_run(run.id)).state is State.PENDING


async def test_two_schedulers_of_one_process_are_two_nodes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'horarium.db'}"
    both = [Scheduler(url), Scheduler(url)]
    store = both[0]._runtime.store

    async def nodes() -> list[bool]:
        """Of each, whether it has stopped."""
        return [node.stopped_at is not None for node in await store.list_nodes(0)]

    async def both_there() -> bool:
        return await nodes() == [False] * 2

    try:
        for each in both:
            await each.start()
        await until(both_there)
        await both[1].stop()
        assert sorted(await nodes()) == [False, True]
    finally:
        for each in both:
            await each.close()


AT_ANOTHER_THREAD = """
import signal, threading, time
from horarium import SyncScheduler
scheduler = SyncScheduler("memory://")

@scheduler.on_startup
def stop():
    time.sleep(0.5)  # the main thread waits by then
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

scheduler.run_forever()
"""


@pytest.mark.slow
def test_a_signal_that_another_thread_got_ends_it_too(tmp_path: Path) -> None:
    """The system may choose any thread, which wakes the main one by nothing."""
    running = program(AT_ANOTHER_THREAD, tmp_path)
    try:
        assert running.communicate(timeout=PATIENCE) == ("", "")
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 0
