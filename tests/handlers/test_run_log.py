"""What handlers say is kept with their runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from horarium import RunContext, Scheduler
from horarium.library.values import Run
from horarium.model import State
from tests.waiting import until

from .conftest import done


@pytest.fixture
async def listening() -> AsyncIterator[Scheduler]:
    """A scheduler that keeps what standard logging says in handlers."""
    async with Scheduler("memory://", capture_logging=True) as scheduler:
        yield scheduler


async def said(scheduler: Scheduler, run: Run) -> list[tuple[str, str]]:
    return [(line.stream, line.text) for line in await scheduler.run_log(run.id)]


async def test_what_is_said_is_there_when_the_run_is_over(scheduler: Scheduler) -> None:
    @scheduler.handler("async")
    async def one(run: RunContext) -> None:
        run.log("begun with %s", run.attempt)
        run.log.warning("half of it\nis done")

    @scheduler.handler("thread")
    def other(run: RunContext) -> None:
        run.log("from a thread")
        try:
            raise ValueError("no paper")
        except ValueError:
            run.log.exception("it failed")

    await scheduler.start()
    run = await done(scheduler, "async")
    assert await said(scheduler, run) == [("log", "begun with 1"), ("log", "WARNING: half of it"), ("log", "is done")]
    run = await done(scheduler, "thread")
    lines = [text for _, text in await said(scheduler, run)]
    assert lines[:2] == ["from a thread", "ERROR: it failed"]
    assert lines[-1] == "ValueError: no paper"


async def test_it_is_read_while_the_handler_goes_on(scheduler: Scheduler) -> None:
    goes_on = asyncio.Event()

    @scheduler.handler()
    async def slow(run: RunContext) -> None:
        run.log("first")
        await goes_on.wait()

    await scheduler.start()
    run = await scheduler.enqueue("slow")

    async def first() -> bool:
        return await said(scheduler, run) == [("log", "first")]

    await until(first, what="the first line")
    assert (await scheduler.get_run(run.id)).state is State.RUNNING
    goes_on.set()


async def test_standard_logging_is_kept_where_it_is_asked_for(listening: Scheduler, scheduler: Scheduler) -> None:
    program = logging.getLogger("program")

    def speaks(run: RunContext) -> None:
        program.warning("disk is %s", "slow")

    for each in (listening, scheduler):
        each.add_handler("thread", speaks)

        @each.handler("async")
        async def one(run: RunContext) -> None:
            await asyncio.to_thread(speaks, run)

        await each.start()
    for name in ("thread", "async"):
        assert await said(listening, await done(listening, name)) == [("program", "WARNING: disk is slow")]
        assert await said(scheduler, await done(scheduler, name)) == []
    program.warning("outside of any run")


async def test_warnings_are_still_shown_where_logging_is_not_configured(
    listening: Scheduler, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @listening.handler()
    def work(run: RunContext) -> None:
        logging.getLogger("app").info("as usual")
        logging.getLogger("app").warning("half full")
        logging.getLogger("configured").warning("written elsewhere")

    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    logging.getLogger("configured").addHandler(logging.NullHandler())
    async with Scheduler("memory://", capture_logging=True) as other:
        other.add_handler("work", work)
        await other.start()
        await listening.start()
        run = await done(listening, "work")
        logging.getLogger("app").error("outside of a handler")
    assert ("app", "WARNING: half full") in await said(listening, run)
    known = {"as usual", "half full", "outside of a handler", "written elsewhere"}
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line in known] == ["half full", "outside of a handler"]


async def test_a_handler_that_says_too_much_is_not_held_up(scheduler: Scheduler) -> None:
    @scheduler.handler()
    async def loud(run: RunContext) -> None:
        for number in range(40_000):
            run.log(f"line {number} of very many that are said in one go")

    await scheduler.start()
    run = await done(scheduler, "loud")
    lines = [text for _, text in await said(scheduler, run)]
    assert lines[0].startswith("line 0 ")
    assert any("lines left out" in line for line in lines)
    assert run.state is State.COMPLETED


async def test_records_of_run_log_say_where_they_come_from(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "horarium.handler")

    @scheduler.handler()
    async def where(run: RunContext) -> None:
        run.log("called")
        run.log.info("a method")

    await scheduler.start()
    await done(scheduler, "where")
    assert [record.funcName for record in caplog.records if record.name == "horarium.handler"] == ["where", "where"]


async def test_a_file_name_that_is_no_text_does_not_fail_the_run_that_names_it(scheduler: Scheduler) -> None:
    name = b"caf\xe9.txt".decode(errors="surrogateescape")

    @scheduler.handler()
    async def work(run: RunContext) -> None:
        run.log(name)

    await scheduler.start()
    run = await done(scheduler, "work")
    assert (run.state, run.error) == (State.COMPLETED, None)
    assert await said(scheduler, run) == [("log", "caf?.txt")]
