"""Whose turn it is within a process: whoever is cancelled, in whatever moment, takes no turn with it."""

from __future__ import annotations

import asyncio
import random

import pytest

from horarium.stores.mongo.alone.turns import Turns


class World:
    """Callers of each kind, some of them cancelled after some rounds of the loop."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.turns = Turns()
        self.sharing = self.alone = 0

    async def call(self) -> None:
        async with self.turns.shared():
            await self._work(0)
            for _ in range(self.chance.randrange(3)):
                async with self.turns.alone():
                    await self._work(1)
            await self._work(0)

    async def _work(self, alone: int) -> None:
        self.alone += alone
        self.sharing += 1 - alone
        assert self.alone == 0 or (self.alone, self.sharing) == (1, 0)
        try:
            for _ in range(self.chance.randrange(3)):
                await asyncio.sleep(0)
        finally:
            self.alone -= alone
            self.sharing -= 1 - alone

    async def cancelled(self) -> None:
        task = asyncio.ensure_future(self.call())
        for _ in range(self.chance.randrange(12)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or task.exception() is None

    async def played(self) -> bool:
        """Whether all have had their turns, after many rounds of the loop."""
        callers = [self.cancelled() if self.chance.random() < 0.6 else self.call() for _ in range(8)]
        given = asyncio.gather(*callers)
        for _ in range(500):
            await asyncio.sleep(0)
        if given.done():
            await given
        return given.done()


@pytest.mark.parametrize("seed", range(100))
def test_a_cancel_at_any_moment_keeps_nobody_waiting(seed: int) -> None:
    world = World(seed)
    loop = asyncio.new_event_loop()  # one that is not asked to end tasks that wait for ever
    try:
        assert loop.run_until_complete(world.played()), "somebody waits for ever"
    finally:
        loop.close()
    assert (world.turns._sharing, world.turns._one_alone, list(world.turns._waiting)) == (0, False, [])
