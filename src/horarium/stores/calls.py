"""Calls of a store that are under way: they go on where their caller is cancelled, and a store closes after them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Calls:
    """Those of one store."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[Any]] = set()

    def start(self, call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(call)
        self._under_way.add(task)
        task.add_done_callback(self._over)
        return task

    async def see_through(self, call: Coroutine[Any, Any, T]) -> T:
        """Wait for a call that goes on even if we are cancelled."""
        return await asyncio.shield(self.start(call))

    async def all_over(self) -> None:
        while self._under_way:
            await asyncio.wait(list(self._under_way))

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            # Read, so that a failure whose caller has gone is not reported as overlooked.
            task.exception()
