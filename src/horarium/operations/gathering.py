"""Questions that come while the last ones are being answered are asked together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")


class Gathered(Generic[Q, A]):
    """`ask` answers any number of questions, each with what it is answered with or the error that it raises. A failure
    of `ask` is that of all that were asked together. A caller that leaves changes nothing for the others."""

    def __init__(self, ask: Callable[[Sequence[Q]], Awaitable[Sequence[A | Exception]]]) -> None:
        self._ask = ask
        self._asked: list[tuple[Q, asyncio.Future[A]]] = []
        self._asking: asyncio.Task[None] | None = None

    async def __call__(self, question: Q) -> A:
        """The answer to one of them."""
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._asked.append((question, answer))
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_all())
        return await answer

    async def _ask_all(self) -> None:
        while self._asked:
            asked, self._asked = self._asked, []
            try:
                answers = await self._ask([question for question, _ in asked])
            except Exception as error:
                answers = [error] * len(asked)
            except BaseException:
                for _, answer in (*asked, *self._asked):
                    answer.cancel()
                self._asked = []
                raise
            for (_, answer), said in zip(asked, answers, strict=True):
                if answer.done():
                    continue
                if isinstance(said, Exception):
                    answer.set_exception(said)
                else:
                    answer.set_result(said)
