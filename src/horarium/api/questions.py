"""Admission control for questions whose cost depends on how much is stored: lists, previews, pages of the dashboard.

A few are answered at a time, the next one of the caller that has had the least; a caller has a share of them, and one
that has none under way does not wait for the long ones of a few others. Of a kind that takes much memory one is
answered at a time; those that wait for it take no place from others. Others wait, and are refused (503,
`Retry-After`) where they would wait too long or too many wait already. A question has a bounded time and a bounded
number of steps for rules, and ends as soon as its client hangs up.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from msgspec import Struct
from starlette.types import Message, Receive

from horarium.api.problems import ClientGone, Overloaded
from horarium.triggers.budget import QUESTION_STEPS, limited

AT_ONCE = 4
CALLER_AT_ONCE = 2
CALLERS_AT_ONCE = 16
"""Questions that are answered at a time where each is the only one of its caller."""
WAITING_MAX = 200
CALLER_WAITING_MAX = 100
QUESTION_SECONDS = 20.0
"""From the arrival of a question to its answer."""

T = TypeVar("T")


class Waiter(Struct, eq=False):
    """A question that waits. `turn`: done once it has a place. `alone`: as in `Questions.ask`."""

    turn: asyncio.Future[None]
    alone: str | None


class Questions:
    """Those of a process that are being answered, and those that wait, by caller."""

    def __init__(self) -> None:
        self._asking: Counter[str] = Counter()
        self._alone = set[str]()
        self._waiting: dict[str, deque[Waiter]] = {}

    async def ask(
        self, caller: str, receive: Receive, question: Callable[[], Awaitable[T]], alone: str | None = None
    ) -> T:
        """The answer to a question of this caller. `receive`: the messages of its ASGI request, as `Messages.watch`
        has them. `alone`: of its kind, of which one is answered at a time. Raises Overloaded, ClientGone, and what the
        question raises."""
        asked = asyncio.ensure_future(self._in_turn(caller, question, alone))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait((asked, gone), timeout=QUESTION_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
            if gone.done():
                raise ClientGone("the client hung up")
            raise Overloaded(f"the question was not answered within {QUESTION_SECONDS:.0f} s; ask for less, or later")
        finally:
            gone.cancel()
            if not asked.done():
                asked.cancel()
                await asyncio.wait((asked,))

    async def _in_turn(self, caller: str, question: Callable[[], Awaitable[T]], alone: str | None) -> T:
        async with self._place(caller, alone):
            with limited(QUESTION_STEPS):
                return await question()

    @asynccontextmanager
    async def _place(self, caller: str, alone: str | None) -> AsyncIterator[None]:
        if self._fits(caller, alone):
            self._enter(caller, alone)
        else:
            await self._wait(caller, alone)
        try:
            yield
        finally:
            self._leave(caller, alone)

    def _fits(self, caller: str, alone: str | None) -> bool:
        asking, all_of_them = self._asking[caller], self._asking.total()
        most = AT_ONCE if asking else CALLERS_AT_ONCE
        return asking < CALLER_AT_ONCE and all_of_them < most and alone not in self._alone

    async def _wait(self, caller: str, alone: str | None) -> None:
        """Return once a place was given to this caller."""
        mine = self._waiting.get(caller, ())
        if len(mine) >= CALLER_WAITING_MAX or sum(map(len, self._waiting.values())) > WAITING_MAX:
            raise Overloaded("too many questions wait for their answers; try again later")
        waiter = Waiter(asyncio.get_running_loop().create_future(), alone)
        self._waiting.setdefault(caller, deque()).append(waiter)
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if not waiter.turn.cancelled():
                self._leave(caller, alone)  # it had been given a place, and did not know yet
            else:
                self._forget(caller, waiter)
            raise

    def _enter(self, caller: str, alone: str | None) -> None:
        self._asking[caller] += 1
        if alone is not None:
            self._alone.add(alone)

    def _leave(self, caller: str, alone: str | None) -> None:
        self._asking[caller] -= 1
        if not self._asking[caller]:
            del self._asking[caller]
        if alone is not None:
            self._alone.discard(alone)
        self._give()

    def _give(self) -> None:
        """Places that are free go to those who have the fewest, then to those who waited longest."""
        while able := [(caller, waiter) for caller in self._waiting if (waiter := self._next(caller)) is not None]:
            caller, waiter = min(able, key=lambda each: self._asking[each[0]])
            self._forget(caller, waiter)
            if caller in self._waiting:
                self._waiting[caller] = self._waiting.pop(caller)  # behind the others
            if not waiter.turn.done():
                waiter.turn.set_result(None)
                self._enter(caller, waiter.alone)

    def _next(self, caller: str) -> Waiter | None:
        """The first question of this caller that may be answered now."""
        return next((each for each in self._waiting[caller] if self._fits(caller, each.alone)), None)

    def _forget(self, caller: str, waiter: Waiter) -> None:
        mine = self._waiting.get(caller)
        if mine is not None and waiter in mine:
            mine.remove(waiter)
            if not mine:
                del self._waiting[caller]


class Messages:
    """The messages of an ASGI request for two: who answers it receives its body, at any time, while who watches sees
    all of them, so that its end is noticed."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._body: asyncio.Queue[Message] = asyncio.Queue(1)

    async def receive(self) -> Message:
        return await self._body.get()

    async def watch(self) -> Message:
        message = await self._receive()
        if message["type"] != "http.disconnect":
            await self._body.put(message)
        return message


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
