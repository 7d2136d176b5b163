"""Wake-ups within one process: a dictionary of callbacks. Nothing is queued: a wake-up that nobody waits for is lost,
and that is all right, since whoever begins to wait looks first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from horarium.errors import Outage

POLL_SECONDS = 0.1


class LocalSignal:
    """The Signal of one process. Used on the event loop only."""

    def __init__(self) -> None:
        self._wakes: dict[str, list[Callable[[], None]]] = {}

    def publish(self, topic: str) -> None:
        for wake in tuple(self._wakes.get(topic, ())):
            wake()

    def subscribe(self, topic: str, wake: Callable[[], None]) -> Callable[[], None]:
        wakes = self._wakes.setdefault(topic, [])
        wakes.append(wake)

        def unsubscribe() -> None:
            if wake in wakes:
                wakes.remove(wake)
            if not wakes and self._wakes.get(topic) is wakes:
                del self._wakes[topic]

        return unsubscribe

    def wake_all(self) -> None:
        """Wake everybody: something changed, and we can't tell what."""
        for wakes in tuple(self._wakes.values()):
            for wake in tuple(wakes):
                wake()


class PolledSignal(LocalSignal):
    """A LocalSignal that also asks, ten times a second, whether anybody else wrote: for stores that can't notify, but
    where asking costs next to nothing (a SQLite file: one pragma)."""

    def __init__(self, changed: Callable[[], Awaitable[bool]]) -> None:
        super().__init__()
        self._changed = changed
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to ask."""
        if self._task is None:
            self._task = asyncio.create_task(self._ask())

    async def stop(self) -> None:
        """Ask no more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _ask(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            with suppress(Outage):
                if await self._changed():
                    self.wake_all()
