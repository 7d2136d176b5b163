"""Requests begin in turns: a few in each round of the event loop, the others after them, in the order they came.

A round does all that is ready. When a thousand clients ask at once, that would be a thousand requests, and all else
that runs in this process (the planner, a claim, an answer of the store) would have its next turn after all of them:
several tenths of a second for each step that it takes. So a round has a bounded number of them, and lasts milliseconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import copy_context

ROUND_MAX = 32
"""Requests that begin in one round of the loop."""


class Turns:
    """Those of one server."""

    def __init__(self, round_max: int = ROUND_MAX) -> None:
        self._round_max = round_max
        self._begun = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self._context = copy_context()
        """In which later ones begin: not in that of the request which happened to be there."""
        self._counting = False

    def take(self, begin: Callable[[], None]) -> None:
        """Begin this now, or when those before it have had their turn."""
        if self._waiting or self._begun >= self._round_max:
            self._waiting.append(begin)
        else:
            self._begun += 1
            begin()
        if not self._counting:
            self._count()

    def _count(self) -> None:
        self._counting = True
        asyncio.get_running_loop().call_soon(self._next_round, context=self._context)

    def _next_round(self) -> None:
        self._counting = False
        self._begun = min(len(self._waiting), self._round_max)
        if self._begun:
            self._count()
        for _ in range(self._begun):
            self._waiting.popleft()()
