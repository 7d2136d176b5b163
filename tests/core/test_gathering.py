"""What comes while the last is being asked is asked together, and each is answered for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import pytest

from horarium.errors import StoreUnavailable
from horarium.operations.writing.gathering import Gathered

FORMS = pytest.mark.parametrize("at_once", [False, True])


class Asking:
    """Answers with the tenfold, and notes what it was asked together. It refuses 3, and fails where it is asked 7."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.asked: list[list[int]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.error = error or ValueError("7 can't be asked")

    async def __call__(self, numbers: Sequence[int]) -> list[int | Exception]:
        self.asked.append(list(numbers))
        await asyncio.sleep(0)
        await self.open.wait()
        if 7 in numbers:
            raise self.error
        return [KeyError(number) if number == 3 else 10 * number for number in numbers]


def three_at_most(waiting: Iterable[int]) -> int:
    return len(list(islice(waiting, 3)))


async def answers(gathered: Gathered[int, int], numbers: Iterable[int]) -> list[Any]:
    said = await asyncio.gather(*map(gathered, numbers), return_exceptions=True)
    return [type(each) if isinstance(each, BaseException) else each for each in said]


@pytest.mark.parametrize(("at_once", "asked"), [(False, [[1, 2, 3, 4]]), (True, [[1], [2, 3, 4]])])
async def test_each_gets_its_own_answer(at_once: bool, asked: list[list[int]]) -> None:
    ask = Asking()
    gathered = Gathered(ask, at_once=at_once)
    assert await answers(gathered, [1, 2, 3, 4]) == [10, 20, KeyError, 40]
    assert ask.asked == asked
    assert await answers(gathered, [5]) == [50]


async def test_no_more_are_asked_together_than_may_be() -> None:
    ask = Asking()
    assert await answers(Gathered(ask, at_once=True, together=three_at_most), [1, 2, 4, 5, 6]) == [10, 20, 40, 50, 60]
    assert ask.asked == [[1], [2, 4, 5], [6]]


@FORMS
async def test_a_failure_is_that_of_all_or_of_one(at_once: bool) -> None:
    assert await answers(Gathered(Asking()), [1, 7, 2]) == [ValueError] * 3
    assert await answers(Gathered(Asking(), apart=True, at_once=at_once), [1, 7, 2]) == [10, ValueError, 20]
    ask = Asking(StoreUnavailable("it is down"))
    assert await answers(Gathered(ask, apart=True), [1, 7, 2]) == [StoreUnavailable] * 3
    assert ask.asked == [[1, 7, 2]]


@FORMS
@pytest.mark.parametrize("gone", [[0], [1], [1, 2, 3], [0, 1, 2, 3]])
@pytest.mark.parametrize("together", [None, three_at_most])
async def test_those_who_leave_keep_no_other_waiting(at_once: bool, gone: list[int], together: Any) -> None:
    ask = Asking()
    gathered = Gathered(ask, at_once=at_once, together=together)
    ask.open.clear()
    calls = [asyncio.ensure_future(gathered(number)) for number in (0, 1, 2, 4)]
    await asyncio.sleep(0)
    for place in gone:
        calls[place].cancel()
    ask.open.set()
    said = await asyncio.gather(*calls, return_exceptions=True)
    left = [number if place not in gone else None for place, number in enumerate((0, 10, 20, 40))]
    assert [None if isinstance(each, asyncio.CancelledError) else each for each in said] == left
    assert await gathered(5) == 50


@pytest.mark.parametrize("apart", [False, True])
async def test_where_the_asking_ends_nobody_waits_for_ever(apart: bool) -> None:
    gathered = Gathered(Asking(asyncio.CancelledError()), apart=apart, together=three_at_most)
    assert await answers(gathered, [1, 7, 2, 4]) == [asyncio.CancelledError] * 4
    assert await gathered(5) == 50
