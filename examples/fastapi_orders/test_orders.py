"""Tests of the example, against the database of DATABASE_URL, in which it has been started once. Its jobs are not there
but in memory, and no time passes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import date

import pytest
from orders import engine, report, scheduler, write, written

from horarium import Defer, WrongArguments
from horarium.testing import assert_enqueued, perform, travel


@pytest.fixture(autouse=True)
async def _connections() -> AsyncIterator[None]:
    """Each test has an event loop of its own, and connections belong to one."""
    yield
    await engine.dispose()


async def test_there_is_a_report_of_each_day_also_where_the_clocks_change() -> None:
    async with travel(scheduler, "2027-03-27T12:00+01:00") as clock:
        await clock.advance("2d")
        assert clock.ran("nightly") == ["2027-03-28T00:15+01:00", "2027-03-29T00:15+02:00"]
        assert_enqueued(scheduler, report, {"day": date(2027, 3, 27)}, count=1)
        assert {run.state for run in clock.runs("report")} == {"completed"}


async def test_a_letter_is_written_once_and_the_batch_is_counted() -> None:
    async with travel(scheduler, "2027-03-29T09:00Z") as clock:
        for _ in range(2):
            async with scheduler.batch("hello", on_finished=written) as batch:
                for customer in ("a@example.com", "b@example.com"):
                    await batch.enqueue(write, {"letter": "hello", "customer": customer})
            await clock.advance("1m")
        assert sorted(run.to_dict()["result"] for run in clock.runs("write")) == ["a@example.com", "b@example.com"]
        assert [run.to_dict()["result"]["written"] for run in clock.runs("written")] == [2, 0]


async def test_a_letter_rests_on_sundays() -> None:
    args = {"letter": "hello", "customer": "a@example.com"}
    with pytest.raises(Defer):
        await perform(scheduler, write, args, fire_at="2027-03-28T09:00Z")
    assert await perform(scheduler, write, args, fire_at="2027-03-29T09:00Z") == "a@example.com"


async def test_a_report_is_of_a_day() -> None:
    assert (await perform(scheduler, report, {"day": "2027-03-27"})).day == date(2027, 3, 27)
    with pytest.raises(WrongArguments):
        await perform(scheduler, report, {"day": "yesterday"})
