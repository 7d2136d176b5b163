"""Forecasts as pages ask for them: worked out once for all, beside, and shown for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from horarium.access.acting import reading
from horarium.access.roles import Principal
from horarium.clock import HOUR
from horarium.dashboard.foresight import Foresight
from horarium.errors import StoreUnavailable
from horarium.operations.looking.forecasting import Forecast
from horarium.rules.forecasting import Bucket
from tests.api.conftest import Api

pytestmark = pytest.mark.slow


async def test_a_forecast_that_took_long_is_kept_for_twenty_times_as_long(api: Api) -> None:
    asked = []

    async def slow(what: Sequence[Any]) -> list[Forecast]:
        asked.append(what)
        api.clock.advance(2)
        return [Forecast([Bucket(0, {"": 1}, {"": 1.0}) for _ in range(3_000)], [], [], []) for _ in what]

    foresight, now = Foresight(slow, api.clock), api.clock.now()
    for _ in range(2):
        await foresight.forecast(now, now + HOUR, 60)
    assert len(asked) == 1
    await foresight.forecast(now, now + HOUR, 60, "job")
    assert len(asked) == 2, "another one"
    api.clock.advance(80)
    await foresight.forecast(now, now + HOUR, 60)
    assert len(asked) == 3
    with reading(Principal(subject="a", name="a", kind="key", labels=({"team": "a"},))):
        await foresight.forecast(now, now + HOUR, 60)
    assert len(asked) == 4, "of its jobs alone"
    for number in range(4):
        await foresight.forecast(now + number, now + HOUR, 60, "host")
    await foresight.forecast(now, now + HOUR, 60)
    assert len(asked) == 9, "few are kept"
    first, second = (now, now + HOUR, 60, "queue"), (now, now + HOUR, 60, "job")
    assert len(await foresight.several([first, second]) or ()) == 2
    assert asked[9:] == [[second]], "those that are not kept, together"


async def test_a_forecast_is_shown_for_a_while_after_the_next_one_is_due(api: Api) -> None:
    asked, go_on, fault = 0, asyncio.Event(), None
    go_on.set()

    async def slow(what: Sequence[Any]) -> list[Forecast]:
        nonlocal asked
        asked += 1
        api.clock.advance(2)
        await go_on.wait()
        if fault is not None:
            raise fault
        return [Forecast([Bucket(asked, {"": 1}, {})], [], [], []) for _ in what]

    foresight, now = Foresight(slow, api.clock), api.clock.now()

    async def look() -> int:
        found = await foresight.forecast(now, now + HOUR, 60)
        assert found is not None
        await asyncio.sleep(0)
        return found.buckets[0].at

    assert [await look(), await look(), asked] == [1, 1, 1]
    api.clock.advance(41)
    go_on.clear()
    assert [await look(), await look(), asked] == [1, 1, 2], "the next one is worked out once, and no look waits for it"
    go_on.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [await look(), asked] == [2, 2]
    api.clock.advance(41)
    fault = StoreUnavailable("away")
    assert [await look(), await look()] == [2, 2], "one that can't be made leaves that which is there"
    api.clock.advance(41)
    with pytest.raises(StoreUnavailable):
        await look()


async def test_no_page_waits_for_what_has_taken_long_already(api: Api) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(what: Sequence[Any]) -> list[Forecast]:
        begun.set()
        await go_on.wait()
        return [Forecast([], [], [], []) for _ in what]

    foresight, now = Foresight(slow, api.clock), api.clock.now()
    first = asyncio.create_task(foresight.forecast(now, now + HOUR, 60))
    await begun.wait()
    api.clock.advance(61)
    assert await foresight.forecast(now, now + HOUR, 60) is None
    assert not first.done()
    later = asyncio.create_task(foresight.forecast(now, now + HOUR, 60, in_view=True))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not later.done(), "one in view waits"
    go_on.set()
    assert await later is not None
    assert await first is not None


async def test_what_takes_long_is_worked_out_beside_and_is_there_for_the_next_look(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horarium.dashboard.foresight.PATIENCE_SECONDS", 0.0)
    go_on, asked, fault = asyncio.Event(), [], None

    async def slow(what: Sequence[Any]) -> list[Forecast]:
        asked.append(what)
        await go_on.wait()
        api.clock.advance(2)
        if fault is not None:
            raise fault
        return [Forecast([Bucket(0, {"": 1}, {"": 1.0}) for _ in range(30_000)], [], [], []) for _ in what]

    foresight, now = Foresight(slow, api.clock), api.clock.now()

    async def look(by: str) -> Forecast | None:
        return await foresight.forecast(now, now + HOUR, 60, by)

    for by in ("queue", "queue", "host"):
        assert await look(by) is None
        await asyncio.sleep(0)
    assert len(asked) == 1, "one at a time, once"
    go_on.set()
    monkeypatch.setattr("horarium.dashboard.foresight.PATIENCE_SECONDS", 60.0)
    for by in ("queue", "host", "job", "queue", "host", "job"):
        found = await look(by)
        assert found is not None, by
        assert found.buckets[0].running, by
    assert len(asked) == 3, "as many as a page has are kept, however long they are"
    bound = Principal(subject="a", name="a", kind="key", labels=({"team": "a"},))
    with reading(bound):
        await look("host")
        await look("host")
    assert len(asked) == 4, "those of a bound visitor too, for itself"
    fault = StoreUnavailable("away")
    go_on.clear()
    monkeypatch.setattr("horarium.dashboard.foresight.PATIENCE_SECONDS", 0.0)
    assert await look("label:a") is None
    go_on.set()
    monkeypatch.setattr("horarium.dashboard.foresight.PATIENCE_SECONDS", 60.0)
    with pytest.raises(StoreUnavailable):
        await look("label:a")
    fault = None
    assert await look("label:a") is not None


async def test_what_was_cancelled_is_worked_out_by_the_next_look(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[asyncio.Task[Any] | None] = []

    async def slow(what: Sequence[Any]) -> list[Forecast]:
        begun.append(asyncio.current_task())
        if len(begun) == 1:
            await asyncio.Event().wait()
        return [Forecast([], [], [], []) for _ in what]

    foresight, now = Foresight(slow, api.clock), api.clock.now()
    monkeypatch.setattr("horarium.dashboard.foresight.PATIENCE_SECONDS", 0.0)
    assert await foresight.forecast(now, now + HOUR, 60) is None
    await asyncio.sleep(0)
    assert begun[0] is not None
    begun[0].cancel()
    await asyncio.wait((begun[0],))
    monkeypatch.setattr("horarium.dashboard.foresight.PATIENCE_SECONDS", 60.0)
    assert await foresight.forecast(now, now + HOUR, 60) is not None
