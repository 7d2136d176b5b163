"""Whose turn it is within a process: many at once, or one alone. First come, first served: nothing waits for ever."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Used on one event loop."""

    def __init__(self) -> None:
        self._sharing = 0
        self._one_alone = False
        self._waiting: deque[tuple[asyncio.Future[None], bool]] = deque()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Beside others that share."""
        await self._enter(alone=False)
        try:
            yield
        finally:
            self._leave(alone=False)

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Beside no other; asked for by one that shares, which shares again afterwards. Others may have had their
        turns before. (One that is cancelled while it waits shares at once, and only leaves.)"""
        self._leave(alone=False)
        try:
            await self._enter(alone=True)
            try:
                yield
            finally:
                self._one_alone = False
        finally:
            self._sharing += 1
            self._serve()

    async def _enter(self, *, alone: bool) -> None:
        if not self._waiting and self._fits(alone):
            self._take(alone)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, alone))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it came in the moment of the cancel
                self._leave(alone=alone)
            raise

    def _leave(self, *, alone: bool) -> None:
        if alone:
            self._one_alone = False
        else:
            self._sharing -= 1
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            turn, wants_alone = self._waiting[0]
            if turn.cancelled():
                self._waiting.popleft()
                continue
            if not self._fits(wants_alone):
                return
            self._waiting.popleft()
            self._take(wants_alone)
            turn.set_result(None)

    def _fits(self, alone: bool) -> bool:
        return not self._one_alone and not (alone and self._sharing)

    def _take(self, alone: bool) -> None:
        if alone:
            self._one_alone = True
        else:
            self._sharing += 1
