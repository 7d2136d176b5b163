"""Workers behind the simulated world's broker: they know the wire and nothing else.

They say `running`, or not; they fall silent, end what they were told to stop, and answer late, with the token or
without it. What they do is drawn from the seed.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import msgspec

from horarium.buses.memory import MemoryBroker
from horarium.testing.simulate.watch import Books

PACE_SECONDS = 0.1


class BusWorker:
    """A worker that takes the actions of every job in turn."""

    def __init__(self, broker: MemoryBroker, chance: Random, books: Books, calm: asyncio.Event) -> None:
        self._broker = broker
        self._chance = chance
        self._books = books
        self._calm = calm
        self._stopped: set[str] = set()

    async def work(self) -> None:
        """For as long as the world lasts."""
        while True:
            for job, kind in sorted(self._broker.queues):
                queue = self._broker.queues.get((job, kind))
                if kind == "action" and queue:
                    await self._take(job, msgspec.json.decode(queue.popleft()))
            await asyncio.sleep(PACE_SECONDS)

    async def _take(self, job: str, action: dict[str, Any]) -> None:
        if action["action"] == "cancel":
            self._stopped.add(action["runId"])
            if self._calm.is_set() or self._chance.random() < 0.8:
                self._say(job, action, "status", status="cancelled")
            return
        self._books.answers.handed_out(action["runId"], action["token"])
        if self._calm.is_set():
            self._say(job, action, "status", status="running")
            self._say(job, action, "status", status="completed")
        else:
            await self._perform(job, action)

    async def _perform(self, job: str, action: dict[str, Any]) -> None:
        dice = self._chance.random()
        if dice < 0.05:
            return  # it dies before it has said anything
        if dice < 0.9:
            self._say(job, action, "status", status="running")
        await asyncio.sleep(self._chance.choice((0.0, 0.2, 1.5)))
        if self._chance.random() < 0.4:
            self._say(job, action, "heartbeat", progress=1)
        if self._chance.random() < 0.15:
            return  # silence
        ends = ("completed", "completed", "failed", "cancelled")
        end = "cancelled" if action["runId"] in self._stopped else self._chance.choice(ends)
        for _ in range(1 if self._chance.random() < 0.9 else 2):
            self._say(job, action, "status", status=end)

    def _say(self, job: str, action: dict[str, Any], kind: str, **said: Any) -> None:
        token = {"token": action["token"]} if self._chance.random() < 0.5 else {}
        body = {"jobName": job, "runId": action["runId"], **token, **said}
        self._broker.put(job, kind, msgspec.json.encode(body))
