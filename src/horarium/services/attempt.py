"""One attempt under way: what its target may ask and tell, why and how it is ended before its time."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any, Protocol

from msgspec.structs import replace

from horarium.clock import SECOND, Instant, to_micros
from horarium.errors import LeaseLost
from horarium.model import Job, Run

CANCEL_AGAIN_SECONDS = 5
"""How long work that was cancelled may clean up before it is cancelled again."""


class Stop(Enum):
    """Why an attempt is ended before its time."""

    TIMEOUT = "timeout"
    LOST = "lost"
    NODE = "node"


class Keeping(Protocol):
    """Who keeps the leases of attempts: the dispatcher."""

    async def beat(self, attempts: list[Attempt], progress: bytes | None = None) -> None:
        """Renew their leases."""

    def keep_stray(self, attempt: Attempt, over: asyncio.Future[Any]) -> None:
        """It is over, but its work goes on until `over` is done."""


class Attempt:
    """An attempt under way: what its target may ask and tell (`ports.Control`), and what we know of it."""

    __slots__ = (
        "_asked", "_cancels", "_dispatcher", "cancel_again_at", "deadline", "given_back", "job", "lease_expires_at",
        "renew_at", "run", "stop", "task",
    )  # fmt: skip

    def __init__(self, dispatcher: Keeping, run: Run, job: Job | None, task: asyncio.Task[None] | None) -> None:
        self._dispatcher = dispatcher
        self._asked: asyncio.Event | bool = False
        self.run = run
        self.job = job
        self.task = task
        self.stop: Stop | None = None
        self.cancel_again_at = 0
        self.given_back = False
        self._cancels = 0
        lease = run.lease_expires_at or 0
        self.lease_expires_at = lease
        self.renew_at = lease - to_micros(run.lease_seconds) * 2 // 3
        limit = run.execution_seconds
        self.deadline = None if limit is None or run.started_at is None else run.started_at + to_micros(limit)

    @property
    def cancelled(self) -> bool:
        return self._asked if isinstance(self._asked, bool) else self._asked.is_set()

    async def wait_cancelled(self) -> None:
        if isinstance(self._asked, bool):
            asked, self._asked = self._asked, asyncio.Event()
            if asked:
                self._asked.set()
        await self._asked.wait()

    async def heartbeat(self, progress: bytes | None = None) -> None:
        if self.stop is None:
            await self._dispatcher.beat([self], progress)
        if self.stop is not None:
            raise LeaseLost(f"the lease on run {self.run.id} is lost ({self.stop.value}); stop working on it")
        if progress is not None:
            self.run = replace(self.run, progress=progress)  # what settles the run later writes all of it

    def goes_on(self, over: asyncio.Future[Any]) -> None:
        if self.stop is not None:
            self._dispatcher.keep_stray(self, over)

    def wants_beat(self, now: Instant) -> bool:
        """Whether a third of the lease is gone, or the wall clock went back, so that nobody can tell."""
        return self.renew_at <= now or self.renew_at > now + to_micros(self.run.lease_seconds)

    def ask_to_stop(self) -> None:
        """A cancel was asked: let the target see it."""
        if isinstance(self._asked, bool):
            self._asked = True
        else:
            self._asked.set()

    def end(self, reason: Stop, now: Instant) -> None:
        """End it now, for this reason."""
        if self.stop is None:
            self.stop = reason
            self.ask_to_stop()
            self.cancel(now)

    def cancel(self, now: Instant) -> None:
        """Cancel its task; once more, if that was not heeded."""
        self.cancel_again_at = now + CANCEL_AGAIN_SECONDS * SECOND
        if self.task is not None and self.task is asyncio.current_task():
            # The work itself has just learnt that its lease is lost. Its cancellation would strike at its next wait;
            # if it ends without one, that would be a wait of the next run.
            asyncio.get_running_loop().call_soon(self._cancel_task)
        else:
            self._cancel_task()

    def _cancel_task(self) -> None:
        if self.task is not None:
            self._cancels += 1
            self.task.cancel()

    def over(self) -> None:
        """Its work has ended. The task goes on with other runs, for which none of this counts."""
        task, self.task = self.task, None
        while self._cancels and task is not None:
            self._cancels -= 1
            task.uncancel()
