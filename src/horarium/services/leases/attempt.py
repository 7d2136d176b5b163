"""One attempt under way: what its target may ask and report, why and how it is ended early."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from horarium.clock import DAY, SECOND, Instant, to_micros
from horarium.errors import LeaseLost
from horarium.model import Job, Run

CANCEL_AGAIN_SECONDS = 5
"""How long work that was cancelled may clean up before it is cancelled again."""


class Stop(Enum):
    """Why an attempt is ended early."""

    TIMEOUT = "timeout"
    LOST = "lost"
    NODE = "node"


class Renewing(Protocol):
    """What renews the leases of attempts."""

    async def beat(self, attempts: Sequence[Attempt], progress: bytes | None = None) -> None:
        """Renew them, and note the state of its lease on each attempt."""


GoesOn = Callable[["Attempt", asyncio.Future[Any]], None]
"""Takes an attempt that is over, though its work goes on until that is done."""


class Attempt(Struct, eq=False):
    """An attempt under way: what its target may ask and report (`ports.Control`), and its state; all instants are of
    the steady scale. (One is made for each run: as a Struct for half of what an object with as many attributes
    costs.)"""

    _leases: Renewing
    _goes_on: GoesOn
    run: Run
    job: Job | None
    task: asyncio.Task[None] | None
    lease_expires_at: Instant
    renew_at: Instant
    deadline: Instant | None
    stop: Stop | None = None
    cancel_again_at: Instant = 0
    given_back: bool = False
    ended: bool = False
    is_done: bool = False
    cancelled: bool = False
    _at_cancel: tuple[Callable[[], None], ...] = ()
    _cancels: int = 0

    @property
    def claim(self) -> tuple[str, int]:
        return self.run.id, self.run.token

    def when_cancelled(self, call: Callable[[], None]) -> None:
        if self.cancelled:
            call()
        else:
            self._at_cancel += (call,)

    async def heartbeat(self, progress: bytes | None = None) -> None:
        if self.stop is None:
            await self._leases.beat([self], progress)
        if self.stop is not None:
            raise LeaseLost(f"the lease on run {self.run.id} is lost ({self.stop.value}); stop working on it")
        if progress is not None:
            self.run = replace(self.run, progress=progress)  # what settles the run later writes all of it

    def done(self) -> None:
        self.is_done, self.deadline, self.renew_at = True, None, self.renew_at + DAY

    def goes_on(self, over: asyncio.Future[Any]) -> None:
        if self.stop is not None:
            self._goes_on(self, over)

    def wants_beat(self, steady: Instant) -> bool:
        """Whether a third of the lease is gone."""
        return self.renew_at <= steady

    def ask_to_stop(self) -> None:
        """A cancel was asked: let the target see it."""
        self.cancelled = True
        calls, self._at_cancel = self._at_cancel, ()
        for call in calls:
            call()

    def end(self, reason: Stop, steady: Instant) -> None:
        """End it now, for this reason."""
        if self.stop is None and not self.is_done:
            self.stop = reason
            self.ask_to_stop()
            self.cancel(steady)

    def cancel(self, steady: Instant) -> None:
        """Cancel its task; again, if it goes on."""
        self.cancel_again_at = steady + CANCEL_AGAIN_SECONDS * SECOND
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
        self.ended = True
        self._at_cancel = ()
        task, self.task = self.task, None
        while self._cancels and task is not None:
            self._cancels -= 1
            task.uncancel()


def begun(leases: Renewing, goes_on: GoesOn, run: Run, job: Job | None, task: asyncio.Task[None] | None) -> Attempt:
    """The attempt at a claimed run that begins now, in this task."""
    ends = run.lease_expires_at or 0
    return Attempt(leases, goes_on, run, job, task, ends, ends - _two_thirds(run.lease_seconds), run.deadline)


@lru_cache(1_000)
def _two_thirds(seconds: float) -> int:
    return to_micros(seconds) * 2 // 3
