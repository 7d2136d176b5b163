"""The chance of a world: each actor draws from a stream of its own.

So one draw more of one actor, a further call of the store by one service, say, moves no other actor's, and a seed that
was kept goes on to mean what it meant.
"""

from __future__ import annotations

import asyncio
from random import Random


class Chances:
    """The streams of one seed, by actor and, where an actor does more than one thing, by what it does."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._streams: dict[tuple[str, ...], Random] = {}

    def of(self, *actor: str) -> Random:
        """The stream of this actor: the same one each time."""
        stream = self._streams.get(actor)
        if stream is None:
            stream = self._streams[actor] = Random(f"{self._seed}/{'/'.join(actor)}")
        return stream

    def here(self, *actor: str) -> Random:
        """The stream of this actor for the task, by the name of its coroutine, that asks."""
        task = asyncio.current_task()
        return self.of(*actor, getattr(task and task.get_coro(), "__qualname__", ""))

    @staticmethod
    def drawn(chance: Random) -> Random:
        """A stream of its own for something that comes of this draw."""
        return Random(chance.getrandbits(64))
