"""The loops of one node's services: begun together, ended by name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from horarium.clock import Clock
from horarium.ports import Signal
from horarium.services.loop.service import Health, Looks, Loop, Service

END_SECONDS = 5.0
"""How long a loop may go on with its present step when it is ended."""


class Loops:
    """One loop for each service."""

    def __init__(
        self, services: Sequence[Service], clock: Clock, signal: Signal, health: Health, looks_at: float = 0.0
    ) -> None:
        self._loops = {service.name: Loop(service, clock, signal, health) for service in services}
        self._tasks = {
            name: asyncio.create_task(loop.run(), name=f"horarium-{name}") for name, loop in self._loops.items()
        }
        looks = Looks(list(self._loops.values()), clock, looks_at, signal)
        self._looks = asyncio.create_task(looks.run(), name="horarium-looks")

    def stop(self, name: str) -> None:
        """End this loop after its present step; returns at once."""
        self._loops[name].stop()

    async def end(self, *names: str) -> None:
        """End these loops (all of them, if none is named, and the looks that they share) after their present step. A
        step that goes on for longer than `END_SECONDS` is cancelled. Returns once they have ended."""
        chosen = [name for name in names or self._loops if name in self._loops]
        for name in chosen:
            self._loops[name].stop()
        if chosen:
            _, late = await asyncio.wait([self._tasks[name] for name in chosen], timeout=END_SECONDS)
            for task in late:
                task.cancel()
        if not names:
            self._looks.cancel()

    def stop_looking(self) -> None:
        """No look comes by itself any more: in virtual time, where no signal is lost."""
        self._looks.cancel()

    def look(self, *names: str) -> None:
        """Let these services look now, as they do once a second."""
        for name in names:
            if name in self._loops:
                self._loops[name].look()
