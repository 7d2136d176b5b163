"""Mistakes of those who meet the library for the first time: each is answered in words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from horarium import Conflict, InvalidJob, InvalidRequest, RunContext, Scheduler, UnknownArgument, every
from horarium.errors import Outage
from horarium.model import State
from tests.handlers.conftest import done


@pytest.mark.parametrize("field", ["unique_key", "unique", "debounce"])
async def test_what_is_for_one_run_is_refused_for_many(scheduler: Scheduler, field: str) -> None:
    with pytest.raises(UnknownArgument, match=f"{field}: it is for one run"):
        await scheduler.enqueue_many("x", [{}, {}], **{field: "k"})  # type: ignore[arg-type]


async def test_a_place_that_no_page_named_is_refused(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidRequest, match="after: give the `next_after`"):
        await scheduler.list_runs(after="garbage")


async def test_a_scheduler_that_is_not_open_is_no_outage(tmp_path: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path}/never.db")
    with pytest.raises(Conflict, match="is not open: use it within `async with scheduler:`") as raised:
        await scheduler.enqueue("x")
    assert not isinstance(raised.value, Outage)


async def test_a_run_is_named_by_its_id_or_by_itself(scheduler: Scheduler) -> None:
    scheduler.handler("one")(lambda run: run.log("said") or 1)
    run = await scheduler.enqueue("one")
    with pytest.raises(TimeoutError, match=f"run {run.id} is still pending: after 0 s"):
        await scheduler.wait_for(run, timeout=0)
    await scheduler.start()
    assert await scheduler.wait_for(run, timeout=30) == await scheduler.get_run(run)
    assert (await scheduler.result(run), len(await scheduler.run_log(run))) == (1, 1)
    cancelled = await scheduler.cancel_run(await scheduler.enqueue("one", delay="1h"))
    assert (cancelled.state, (await scheduler.retry_run(cancelled)).state) == (State.CANCELLED, State.PENDING)
    with pytest.raises(InvalidRequest, match="run_id: expected a run or its id, not 7"):
        await scheduler.wait_for(7)  # type: ignore[arg-type]


async def test_a_result_that_is_cut_is_told(scheduler: Scheduler, caplog: pytest.LogCaptureFixture) -> None:
    scheduler.handler("long")(lambda run: "x" * 70_000)
    await scheduler.start()
    assert (await done(scheduler, "long")).state is State.COMPLETED
    assert "its result has 70,002 bytes, of 65,536 at most; only the beginning is kept" in caplog.text


def test_a_cell_that_is_run_again_replaces_its_handler_and_job(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler("memory://")

    def define(hours: int) -> None:
        def report(run: RunContext) -> int:
            return hours

        report.__module__ = "__main__"
        scheduler.job(every(f"{hours}h"))(report)

    monkeypatch.setattr(sys.modules["__main__"], "__file__", "program.py", raising=False)
    define(1)
    with pytest.raises(InvalidJob, match="registered already"):
        define(2)
    monkeypatch.delattr(sys.modules["__main__"], "__file__")
    define(3)
    assert [job.trigger["every_seconds"] for job in scheduler._program.jobs] == [10_800]
