"""Requests begin in turns: a few in each round of the event loop, the others after them, in the order they came.

A round does all that is ready. When a thousand clients ask at once, that would be a thousand requests, and all else
that runs in this process (the planner, a claim, an answer of the store) would have its next turn after all of them:
several tenths of a second for each step that it takes. So a round has a bounded number of them, and lasts milliseconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

ROUND_MAX = 32
"""Requests that begin in one round of the loop."""


class Turns:
    """An ASGI application around another."""

    def __init__(self, app: Any, round_max: int = ROUND_MAX) -> None:
        self._app = app
        self._round_max = round_max
        self._begun = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._turn()
        await self._app(scope, receive, send)

    async def _turn(self) -> None:
        """Return now, or when those before it have had their turn."""
        if self._waiting or self._begun >= self._round_max:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        else:
            self._begin(self._begun + 1)

    def _begin(self, count: int) -> None:
        """This number has begun since the last round that was waited for; the next is waited for once it is the limit,
        since each round costs as much as a small request."""
        self._begun = count
        if count == self._round_max:
            asyncio.get_running_loop().call_soon(self._next_round)

    def _next_round(self) -> None:
        self._begin(min(len(self._waiting), self._round_max))
        for _ in range(self._begun):
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
