"""Travel in time: a program's handlers at the fire times of its jobs, without waiting."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from horarium import InvalidRequest, Retry, RunContext, Scheduler, SyncScheduler, cron, every
from horarium.testing import travel
from tests.waiting import PATIENCE

START = "2027-03-27T00:00+01:00"


@pytest.fixture
def scheduler(tmp_path: Path) -> Scheduler:
    """Its own store can't be opened: a test that touches it fails."""
    return Scheduler(f"sqlite:///{tmp_path}/nowhere/jobs.db")


def with_jobs(scheduler: Scheduler, count: int) -> dict[str, int]:
    """Jobs in Berlin, each with its own handler, and how often each of these was called."""
    called = dict.fromkeys((f"job-{number}" for number in range(count)), 0)
    for number, name in enumerate(called):

        async def handler(run: RunContext) -> None:
            called[run.job or ""] += 1

        handler.__name__ = f"handler-{number}"
        scheduler.job(cron(f"{number} 3 * * *", timezone="Europe/Berlin"), name)(handler)
    return called


async def test_fifty_jobs_over_a_change_of_the_clocks_take_less_than_a_second(scheduler: Scheduler) -> None:
    called = with_jobs(scheduler, 50)
    began = time.process_time()
    async with travel(scheduler, START) as clock:
        await clock.advance("2d")
        assert clock.ran("job-0") == ["2027-03-27T03:00+01:00", "2027-03-28T03:00+02:00"]
        assert clock.ran("job-49") == [
            datetime(2027, 3, 27, 2, 49, tzinfo=UTC),
            datetime(2027, 3, 28, 1, 49, tzinfo=UTC),
        ]
        assert clock.now() == "2027-03-29T00:00+01:00"
    assert set(called.values()) == {2}
    assert time.process_time() - began < 3.0, "well under a second, alone on a quiet core"


async def test_after_the_block_it_is_still_known_what_ran(scheduler: Scheduler) -> None:
    with_jobs(scheduler, 1)
    async with travel(scheduler, START) as clock:
        await clock.advance("1d")
    assert clock.ran("job-0") == ["2027-03-27T03:00+01:00"]


def test_after_a_plain_block_too(tmp_path: Path) -> None:
    scheduler = SyncScheduler(f"sqlite:///{tmp_path}/nowhere/jobs.db")
    scheduler.add_handler("tick", lambda run: None)
    with travel(scheduler, "2027-01-01T00:00Z") as clock:
        scheduler.add_job("hourly", every("1h"), handler="tick")
        clock.advance("1h")
    assert clock.ran("hourly") == ["2027-01-01T01:00Z"]


async def test_what_falls_due_at_the_end_of_a_move_has_run_and_nothing_later_has(scheduler: Scheduler) -> None:
    scheduler.add_handler("tick", lambda run: None)
    async with travel(scheduler, "2027-01-01T00:00Z") as clock:
        await scheduler.add_job("hourly", every("1h"), handler="tick")
        await clock.advance(3599.999999)
        assert clock.ran("hourly") == []
        await clock.advance(0.000001)
        assert clock.ran("hourly") == ["2027-01-01T01:00Z"]


@pytest.mark.slow
async def test_one_off_runs_sleeps_and_retries_take_virtual_time(scheduler: Scheduler) -> None:
    @scheduler.handler()
    async def long(run: RunContext, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    @scheduler.handler()
    def third_time(run: RunContext) -> int:
        if run.attempt < 3:
            raise Retry("not yet", after=3600)
        return run.attempt

    async with travel(scheduler, START) as clock:
        await scheduler.enqueue(long, {"seconds": 7200})
        await scheduler.enqueue(third_time, delay="1d")
        await clock.advance(timedelta(hours=1))
        assert [run.state for run in clock.runs("long")] == ["running"]
        await clock.advance("1h")
        assert [run.result for run in clock.runs("long")] == [b'"done"']
        await clock.advance_to("2027-03-28T00:30+01:00")
        assert [(run.state, run.attempt) for run in clock.runs("third_time")] == [("pending", 1)]
        await clock.advance("2h")
        assert [(run.state, run.result) for run in clock.runs("third_time")] == [("completed", b"3")]
        assert clock.ran("third_time") == ["2027-03-28T00:00+01:00"]


async def test_a_time_limit_ends_an_attempt_at_its_instant(scheduler: Scheduler) -> None:
    @scheduler.handler()
    async def endless(run: RunContext) -> None:
        await asyncio.Event().wait()

    async with travel(scheduler, START) as clock:
        await scheduler.enqueue(endless, timeouts={"execution_seconds": 600}, retry={"attempts_max": 1})
        await clock.advance("9m59s")
        assert [run.state for run in clock.runs()] == ["running"]
        await clock.advance("1m")
        (run,) = clock.runs()
        assert (run.state, run.error) == ("failed", "timed out: not done within 600 s; its lease was given up")


async def test_what_is_called_at_the_start_may_wait(scheduler: Scheduler) -> None:
    scheduler.on_startup(lambda: asyncio.sleep(0.01))
    with_jobs(scheduler, 1)
    async with travel(scheduler, "2027-01-01T00:00Z") as clock:
        await clock.advance("4h")
        assert [run.state for run in clock.runs("job-0")] == ["completed"]


async def test_threads_and_sockets_are_waited_for_and_no_time_passes_beside_them(scheduler: Scheduler) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    gone_on = threading.Event()

    @scheduler.handler()
    def blocking(run: RunContext) -> bool:
        return gone_on.wait(PATIENCE)

    @scheduler.handler()
    async def asking(run: RunContext) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello\n")
        said = await asyncio.wait_for(reader.readline(), 60)
        writer.close()
        return said.decode()

    async with travel(scheduler, START) as clock:
        await scheduler.enqueue(blocking)
        await scheduler.enqueue(asking)
        threading.Timer(0.05, gone_on.set).start()
        await clock.advance(0)
        assert {run.result for run in clock.runs()} == {b"true", b'"hello\\n"'}
        assert clock.now() == START
    server.close()


@pytest.mark.slow
async def test_work_that_waits_for_the_rest_of_its_time_comes_to_an_end(scheduler: Scheduler) -> None:
    """asyncio calls a timer up to a nanosecond early."""
    async with travel(scheduler, START) as clock:
        loop, waits = asyncio.get_running_loop(), 0
        end = loop.time() + 5e-10
        while (left := end - loop.time()) > 0 and waits < 10_000:
            waits += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), left)
        assert waits < 10_000
        assert clock.now() == START


async def test_timers_of_before_know_nothing_of_the_days_that_passed(scheduler: Scheduler) -> None:
    async with asyncio.timeout(PATIENCE):
        async with travel(scheduler, START) as clock:
            await clock.advance("2d")
        await asyncio.sleep(0)
    assert abs(asyncio.get_running_loop().time() - time.monotonic()) < PATIENCE


async def test_jobs_that_overlap_are_skipped_as_they_would_be(scheduler: Scheduler) -> None:
    @scheduler.job(every("1m"), overlap="skip")
    async def slow(run: RunContext) -> None:
        await asyncio.sleep(90)

    async with travel(scheduler, "2027-01-01T00:00:00Z") as clock:
        await clock.advance("4m")
        assert clock.ran("slow") == ["2027-01-01T00:01Z", "2027-01-01T00:03Z"]
        assert [run.state for run in clock.runs("slow")] == ["completed", "skipped", "running", "skipped"]


async def test_the_scheduler_is_as_it_was_afterwards_also_when_the_test_fails() -> None:
    async with Scheduler("memory://") as scheduler:
        await scheduler.enqueue("elsewhere")
        with suppress(ZeroDivisionError):
            async with travel(scheduler, START) as clock:
                assert (await scheduler.list_runs()).items == ()
                await clock.advance("1d")
                raise ZeroDivisionError
        assert len((await scheduler.list_runs()).items) == 1


async def test_work_that_goes_on_at_the_end_is_interrupted(scheduler: Scheduler) -> None:
    ended = []

    @scheduler.handler()
    async def endless(run: RunContext) -> None:
        try:
            await asyncio.sleep(86_400)
        finally:
            ended.append(run.id)

    async with travel(scheduler, START) as clock:
        run = await scheduler.enqueue(endless)
        await clock.advance("1s")
    assert ended == [run.id]


@pytest.mark.parametrize("start", ["tomorrow", "2027-03-27T00:00", datetime(2027, 3, 27), None, 5])
def test_a_start_without_an_offset_is_refused(scheduler: Scheduler, start: Any) -> None:
    with pytest.raises(InvalidRequest, match="give one as 2027-03-27T00:00"):
        travel(scheduler, start)


async def test_time_does_not_go_back_and_ends_with_the_block(scheduler: Scheduler) -> None:
    async with travel(scheduler, START) as clock:
        with pytest.raises(InvalidRequest, match="forward only"):
            await clock.advance(-1)
        with pytest.raises(InvalidRequest, match="forward only, not by inf s"):
            await clock.advance(float("inf"))
    with pytest.raises(InvalidRequest, match="it is over"):
        await clock.advance(1)


@pytest.mark.slow
def test_without_asyncio() -> None:
    scheduler = SyncScheduler("sqlite:////nowhere/jobs.db")

    @scheduler.handler()
    def child(run: RunContext, number: int) -> int:
        return number

    @scheduler.job(cron("0 3 * * *", timezone="Europe/Berlin"))
    def nightly(run: RunContext) -> None:
        scheduler.enqueue(child, {"number": run.attempt}, delay="1h")

    with travel(scheduler, START) as clock:
        clock.advance("2d")
        assert clock.ran("nightly") == ["2027-03-27T03:00+01:00", "2027-03-28T03:00+02:00"]
        assert clock.ran("child") == ["2027-03-27T04:00+01:00", "2027-03-28T04:00+02:00"]
        assert [run.result for run in clock.runs("child")] == [b"1", b"1"]
        assert len(scheduler.list_runs(queue="handler/child").items) == 2


async def test_one_scheduler_travels_at_a_time_on_an_event_loop(scheduler: Scheduler) -> None:
    other = Scheduler("sqlite:///nowhere/other.db")
    async with travel(scheduler, START) as clock:
        with pytest.raises(InvalidRequest, match="another scheduler travels on this event loop"):
            async with travel(other, START):
                pass
        await clock.advance("1h")
    async with travel(other, START) as clock:
        await clock.advance("1h")
        assert clock.now().isoformat() == "2027-03-27T00:00:00+00:00"


async def test_a_sync_scheduler_travels_in_a_plain_block(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidRequest, match="plain block"):
        async with travel(SyncScheduler(scheduler), START):
            pass
