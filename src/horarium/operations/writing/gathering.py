"""Questions that come while the last ones are being answered are asked together.

They are one question to the store, in the order they came: one round trip or one transaction for all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar

from horarium.errors import Outage

Q = TypeVar("Q")
A = TypeVar("A")


class Gathered(Generic[Q, A]):
    """`ask` answers any number of questions, each with what it is answered with or the error that it raises. A caller
    that leaves changes nothing for the others. A failure of `ask` is that of all that were asked together.

    `at_once`: one that comes while none is being answered is asked by its own caller, without a task; it is given up if
    that one leaves. `together`: how many of those that wait are asked in one go, one at least (left out: all). `apart`:
    after a failure that is no outage, each is asked alone."""

    def __init__(
        self,
        ask: Callable[[Sequence[Q]], Awaitable[Sequence[A | Exception]]],
        *,
        at_once: bool = False,
        together: Callable[[Iterable[Q]], int] | None = None,
        apart: bool = False,
    ) -> None:
        self._ask = ask
        self._at_once = at_once
        self._together = together
        self._apart = apart
        self._asked: deque[tuple[Q, asyncio.Future[A]]] = deque()
        self._busy = False
        self._asking: asyncio.Task[None] | None = None

    async def __call__(self, question: Q) -> A:
        if self._busy or not self._at_once:
            answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
            self._asked.append((question, answer))
            self._go_on()
            return await answer
        self._busy = True
        try:
            (said,) = await self._ask([question])
        finally:
            self._busy = False
            if self._asked:
                self._go_on()
        if isinstance(said, Exception):
            raise said
        return said

    def _go_on(self) -> None:
        if self._asked and not self._busy:
            self._busy = True
            self._asking = asyncio.create_task(self._ask_all())

    async def _ask_all(self) -> None:
        """Ask those that have gathered, until there are none."""
        group: list[tuple[Q, asyncio.Future[A]]] = []
        try:
            while group := self._next_group():
                await self._ask_group(group)
        finally:
            self._busy = False
            for _, answer in (*group, *self._asked):
                answer.cancel()
            self._asked.clear()

    def _next_group(self) -> list[tuple[Q, asyncio.Future[A]]]:
        """Those that come next. Those whose callers are gone are left out."""
        waiting = self._asked
        if self._together is None:
            count = sum(not answer.done() for _, answer in waiting)
        else:
            count = self._together(question for question, answer in waiting if not answer.done())
        group: list[tuple[Q, asyncio.Future[A]]] = []
        while len(group) < count:
            asked = waiting.popleft()
            if not asked[1].done():
                group.append(asked)
        return group

    async def _ask_group(self, group: Sequence[tuple[Q, asyncio.Future[A]]]) -> None:
        answers: Sequence[A | Exception]
        try:
            answers = await self._ask([question for question, _ in group])
        except Exception as error:
            if self._apart and len(group) > 1 and not isinstance(error, Outage):
                for asked in group:
                    await self._ask_group([asked])
                return
            answers = [error] * len(group)
        for (_, answer), said in zip(group, answers, strict=True):
            if answer.done():
                continue
            if isinstance(said, Exception):
                answer.set_exception(said)
            else:
                answer.set_result(said)
