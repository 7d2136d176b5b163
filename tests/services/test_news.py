"""What changed is told to all who listen, and once more a look later."""

from __future__ import annotations

import asyncio

import pytest

from horarium.errors import StoreUnavailable
from horarium.ports import JOBS, Stats
from horarium.services.polling.news import AWAY, CALLER_LISTENERS_MAX, News
from horarium.stores.wakeups import LocalSignal


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horarium.services.polling.news.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("horarium.services.polling.news.SILENCE_SECONDS", 0.5)


async def test_a_change_is_told_twice_and_then_there_is_silence() -> None:
    looked = asyncio.Event()

    async def count() -> Stats:
        looked.set()
        return Stats(0, 0, ())

    signal, done = LocalSignal(), 0
    news = News(count, signal, lambda: done)
    told = news.listen()
    first = asyncio.ensure_future(anext(told))
    await looked.wait()
    done += 1
    assert await first == {"runs"}
    assert await anext(told) == {"runs"}
    assert await anext(told) == frozenset()
    signal.publish(JOBS)
    assert await anext(told) == {"jobs"}
    assert await anext(told) == {"jobs"}
    news.close()
    assert [kinds async for kinds in told] == []


async def test_one_caller_takes_a_part_of_the_places() -> None:
    async def count() -> Stats:
        return Stats(0, 0, ())

    news = News(count, LocalSignal(), lambda: 0)
    greedy = [news.listen("key viewer") for _ in range(CALLER_LISTENERS_MAX)]
    waiting = [asyncio.ensure_future(anext(each)) for each in greedy]
    await asyncio.sleep(0)
    assert (news.full("key viewer"), news.full("key other"), news.full("")) == (True, False, False)
    waiting[0].cancel()
    await asyncio.gather(waiting[0], return_exceptions=True)
    assert not news.full("key viewer")
    news.close()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert not news.full("key viewer")


async def test_a_store_that_stops_answering_is_news() -> None:
    answers, looked = True, asyncio.Event()

    async def count() -> Stats:
        looked.set()
        if not answers:
            raise StoreUnavailable("gone")
        return Stats(0, 0, ())

    news = News(count, LocalSignal(), lambda: 0)
    told = news.listen()
    first = asyncio.ensure_future(anext(told))
    await looked.wait()
    answers = False
    assert await first == {"jobs", "runs", AWAY}
    assert await anext(told) == {"jobs", "runs"}
    news.close()


async def test_a_store_that_stands_still_is_news_before_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horarium.services.polling.news.COUNT_SECONDS", 0.05)
    goes_on, looked = asyncio.Event(), asyncio.Event()
    goes_on.set()

    async def count() -> Stats:
        looked.set()
        await goes_on.wait()
        return Stats(0, 0, ())

    news = News(count, LocalSignal(), lambda: 0)
    told = news.listen()
    first = asyncio.ensure_future(anext(told))
    await looked.wait()
    goes_on.clear()
    assert await first == {"jobs", "runs", AWAY}
    goes_on.set()
    while await anext(told) != {"jobs", "runs"}:
        pass
    news.close()


async def test_listeners_that_look_again_hear_of_a_change_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horarium.services.polling.news.TURN_SECONDS", 0.1)
    looked, heard = asyncio.Event(), list[int]()
    at = list[float]()

    async def count() -> Stats:
        looked.set()
        return Stats(0, 0, ())

    signal, clock = LocalSignal(), asyncio.get_running_loop().time
    news = News(count, signal, lambda: 0)

    async def listens(number: int, *, paced: bool) -> None:
        async for kinds in news.listen(paced=paced):
            if kinds:
                heard.append(number)
                at.append(clock())
                return

    tasks = [asyncio.ensure_future(listens(number, paced=number < 3)) for number in range(4)]
    await looked.wait()
    signal.publish(JOBS)
    await asyncio.gather(*tasks)
    assert sorted(heard[:2]) == [0, 3], "one that is not paced does not wait"
    assert heard[2:] == [1, 2]
    assert at[2] - at[0] > 0.05
    assert at[3] - at[2] > 0.05
    told = news.listen(paced=True), news.listen(paced=True)
    last = [asyncio.ensure_future(anext(each)) for each in told]
    await asyncio.sleep(0)
    monkeypatch.setattr("horarium.services.polling.news.TURN_SECONDS", 60.0)
    signal.publish(JOBS)
    assert await last[0] == {"jobs"}
    news.close()
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(last[1], 5)
