"""Failures are seen in the log, with their tracebacks in the run; nothing that a handler raises ends its worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from horarium import Retry, RunContext, Scheduler, every
from horarium.model import State
from horarium.services.performing.performing import OWN_DOING
from tests.handlers.conftest import done, ended
from tests.waiting import until

RAISED = [
    BaseException("base"),
    KeyboardInterrupt(),
    GeneratorExit(),
    BaseExceptionGroup("many", [BaseException("one")]),
]


@pytest.fixture
async def scheduler_of_endpoints() -> AsyncIterator[Scheduler]:
    async with Scheduler("memory://", allow_private_targets=True) as scheduler:
        await scheduler.start()
        yield scheduler


def levels(caplog: pytest.LogCaptureFixture, run_id: str) -> list[tuple[str, int, int]]:
    """What the log has of a run: its job, the level and the attempt of each line."""
    records = [record for record in caplog.records if getattr(record, "run", None) == run_id]
    return [(record.__dict__["job"], record.levelno, record.__dict__["attempt"]) for record in records]


def deep() -> None:
    raise LookupError("kaput")


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_whatever_a_handler_raises_is_a_failure_at_once_and_its_worker_goes_on(
    scheduler: Scheduler, error: BaseException, kind: str
) -> None:
    if kind == "async":

        @scheduler.handler("raises")
        async def raises(run: RunContext) -> None:
            raise error

    else:

        @scheduler.handler("raises")
        def raises_too(run: RunContext) -> None:
            raise error

    @scheduler.handler("well")
    async def well(run: RunContext) -> int:
        return 1

    await scheduler.start()
    run = await done(scheduler, "raises", timeouts={"heartbeat_seconds": 30})
    assert run.state is State.FAILED
    assert type(error).__name__ in (run.error or "")
    assert (await done(scheduler, "well")).state is State.COMPLETED


@pytest.mark.parametrize("kind", ["waits", "returns", "raises", "returns a coroutine"])
async def test_a_handler_that_cancels_its_own_task_has_failed_at_once(scheduler: Scheduler, kind: str) -> None:
    async def cancels() -> None:
        if kind == "raises":
            raise asyncio.CancelledError
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if kind != "returns":
            await asyncio.Event().wait()

    if kind == "returns a coroutine":
        scheduler.handler("cancels")(lambda: cancels())
    else:
        scheduler.handler("cancels")(cancels)

    @scheduler.handler("well")
    async def well(run: RunContext) -> int:
        await asyncio.sleep(0)
        return 1

    async def cleans_up() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await over.wait()

    over = asyncio.Event()
    another = asyncio.create_task(cleans_up())
    await asyncio.sleep(0)
    another.cancel()  # a task of the program that is cancelled says nothing of the event loop
    await scheduler.start()
    waiting = [await scheduler.enqueue(name, retry={"attempts_max": 1}) for name in ("cancels", "well") * 3]
    for run in waiting:
        ended = await scheduler.wait_for(run, timeout=20)
        told = (State.FAILED, OWN_DOING) if ended.queue == "handler/cancels" else (State.COMPLETED, None)
        assert (ended.state, ended.error) == told
    over.set()
    await another


def test_the_end_of_the_event_loop_is_no_failure_of_what_runs_and_lets_nothing_more_begin() -> None:
    begun: list[str] = []

    async def program(scheduler: Scheduler) -> None:
        @scheduler.handler("waits", concurrency=1)
        async def waits(run: RunContext) -> None:
            begun.append(run.id)
            await asyncio.Event().wait()

        await scheduler.open()
        await scheduler.start()
        await scheduler.enqueue_many("waits", [{}, {}])
        await until(lambda: begun)

    scheduler = Scheduler("memory://", handler_concurrency=1)
    asyncio.run(program(scheduler))
    (run,) = asyncio.run(scheduler._runtime.store.get_runs(begun))
    assert run is not None
    assert run.state is State.RUNNING


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_each_failed_attempt_is_in_the_log_and_the_last_one_with_its_traceback(
    scheduler: Scheduler, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    if kind == "async":

        @scheduler.handler("breaks")
        async def breaks(run: RunContext) -> None:
            deep()

    else:

        @scheduler.handler("breaks")
        def breaks_too(run: RunContext) -> None:
            deep()

    await scheduler.start()
    run = await ended(scheduler, await scheduler.enqueue("breaks", retry={"attempts_max": 2, "backoff_seconds": 0}))
    records = [record for record in caplog.records if getattr(record, "run", None) == run.id]
    assert [(record.levelno, record.__dict__["attempt"]) for record in records] == [
        (logging.WARNING, 1), (logging.ERROR, 2),
    ]  # fmt: skip
    assert "in deep" in records[1].getMessage()
    assert "in deep" not in records[0].getMessage()


async def test_an_endpoint_that_fails_is_in_the_log_like_a_handler(
    scheduler_of_endpoints: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = scheduler_of_endpoints

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        await scheduler.add_job("web", every("1h"), http=url, retry={"attempts_max": 2, "backoff_seconds": 0})
        run = await ended(scheduler, await scheduler.trigger_job("web"))
    assert levels(caplog, run.id) == [("web", logging.WARNING, 1), ("web", logging.ERROR, 2)]
    assert "500" in caplog.text


async def test_another_attempt_after_nonsense_is_an_error_of_its_handler(scheduler: Scheduler) -> None:
    @scheduler.handler("again")
    def again(run: RunContext) -> None:
        raise Retry("later", after="5m")  # type: ignore[arg-type]

    await scheduler.start()
    run = await done(scheduler, "again")
    assert str(run.error).startswith("InvalidRequest: after: expected a timedelta or seconds, not '5m'")


async def test_tracebacks_are_kept_with_the_attempts(scheduler: Scheduler) -> None:
    @scheduler.handler()
    async def breaks(run: RunContext) -> None:
        deep()

    await scheduler.start()
    run = await ended(scheduler, await scheduler.enqueue("breaks", retry={"attempts_max": 5, "backoff_seconds": 0}))
    details = [event.detail for event in run.history if isinstance(event.detail, str)]
    assert len(details) == 3, "the last three"
    assert all("in deep" in detail and "LookupError: kaput" in detail for detail in details)
    assert "_in_thread" not in details[0]
    assert run.history[-1].state is State.FAILED


async def test_a_result_that_json_does_not_have_is_refused_and_not_made_null(scheduler: Scheduler) -> None:
    @scheduler.handler()
    async def measures(run: RunContext) -> object:
        return {"values": [1.0, float("nan")], "none": None}

    await scheduler.start()
    run = await done(scheduler, "measures")
    assert (run.state, run.error) == (
        State.FAILED, "its result can't be written as JSON: it['values'][1] is not a finite number",
    )  # fmt: skip


async def test_progress_is_what_a_result_may_be(scheduler: Scheduler) -> None:
    @scheduler.handler()
    async def measures(run: RunContext) -> None:
        await run.progress({"done": float("inf")})

    await scheduler.start()
    run = await done(scheduler, "measures")
    assert "progress: can't be written as JSON: progress['done'] is not a finite number" in str(run.error)


async def test_an_error_without_a_text_is_told_by_its_name(scheduler: Scheduler) -> None:
    @scheduler.handler()
    async def lost() -> None:
        raise AssertionError

    await scheduler.start()
    run = await done(scheduler, "lost")
    assert str(run.error).startswith("AssertionError (at test_failures.py:")


async def test_an_error_whose_text_can_not_be_made_is_judged_as_any(scheduler: Scheduler) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise LookupError("no text")

    @scheduler.handler(give_up_on=Mute)
    async def work() -> None:
        raise Mute

    await scheduler.start()
    run = await ended(scheduler, await work.enqueue())
    assert (run.state, run.attempt) == ("failed", 1)
    assert (run.error or "").startswith("Mute: its text can't be made: LookupError (at test_failures.py:")


async def test_what_a_failure_says_can_neither_move_a_cursor_nor_make_a_line_of_the_log(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    hostile = "\x1b[2Jhello\x1b]52;c;cHduZWQ=\x07\r\n2026-01-01 [info] all is well\x85\u2028end"

    @scheduler.handler("hostile")
    async def raises(run: RunContext) -> None:
        raise ValueError(hostile)

    await scheduler.start()
    run = await scheduler.enqueue("hostile", retry={"attempts_max": 2, "backoff_seconds": 0})
    await ended(scheduler, run)
    said = [record.getMessage() for record in caplog.records if getattr(record, "run", None) == run.id]
    assert len(said) == 2
    assert all(character.isprintable() or character == "\n" for text in said for character in text)
    assert "all is well" in said[0]
    assert all(len(text.split("\nTraceback")[0].splitlines()) == 1 for text in said)
