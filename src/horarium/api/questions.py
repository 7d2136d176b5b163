"""Admission control for questions whose cost depends on how much is stored: lists, previews, pages of the dashboard.

A few are answered at a time, the next one of the caller that has had the least; a caller has a share of them, and one
that has none under way does not wait for the long ones of a few others. Others wait, and are refused (503,
`Retry-After`) where they would wait too long or too many wait already. A question has a bounded time and a bounded
number of steps for rules, and ends as soon as its client hangs up.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import TypeVar

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


class Questions:
    """Those of a process that are being answered, and those that wait, by caller."""

    def __init__(self) -> None:
        self._asking: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

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
        async with self._place(caller), nullcontext() if alone is None else self._turns[alone]:
            with limited(QUESTION_STEPS):
                return await question()

    @asynccontextmanager
    async def _place(self, caller: str) -> AsyncIterator[None]:
        if self._fits(caller):
            self._asking[caller] += 1
        else:
            await self._wait(caller)
        try:
            yield
        finally:
            self._leave(caller)

    def _fits(self, caller: str) -> bool:
        asking, all_of_them = self._asking[caller], self._asking.total()
        most = AT_ONCE if asking else CALLERS_AT_ONCE
        return asking < CALLER_AT_ONCE and all_of_them < most

    async def _wait(self, caller: str) -> None:
        """Return once a place was given to this caller."""
        mine = self._waiting.setdefault(caller, deque())
        if len(mine) >= CALLER_WAITING_MAX or sum(map(len, self._waiting.values())) > WAITING_MAX:
            raise Overloaded("too many questions wait for their answers; try again later")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        mine.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._leave(caller)  # it had been given a place, and did not know yet
            elif turn in mine:
                mine.remove(turn)
                if not mine:
                    del self._waiting[caller]
            raise

    def _leave(self, caller: str) -> None:
        self._asking[caller] -= 1
        if not self._asking[caller]:
            del self._asking[caller]
        self._give()

    def _give(self) -> None:
        """Places that are free go to those who have the fewest, then to those who waited longest."""
        while able := [caller for caller in self._waiting if self._fits(caller)]:
            caller = min(able, key=lambda each: self._asking[each])
            mine = self._waiting.pop(caller)
            turn = mine.popleft() if mine else None
            if mine:
                self._waiting[caller] = mine  # behind the others
            if turn is not None and not turn.done():
                turn.set_result(None)
                self._asking[caller] += 1


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
