"""Callers that wait for runs to be over: any number of them, one watcher.

The end of a run that this process writes is known here at once. Where others wait, a node says so, and hears of
every end that is written elsewhere; where no one waits, that costs nothing. One look a second at the runs that are
waited for keeps it correct with all of these words lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from horarium.errors import Outage
from horarium.model import Run
from horarium.operations.writing.context import Context
from horarium.operations.writing.named import run_of_id
from horarium.ports import BATCH_MAX, ENDED, REPEATED, Topic

RUN_WAIT_SECONDS_MAX = 60.0
"""Of one request."""
RUN_WAITERS_MAX = 10_000
"""Callers that wait at one time in this process; one more is answered at once."""
LOOK_SECONDS = 1.0
PAUSE_SECONDS_EACH = 0.0002
"""Between two looks, for each run that is waited for: a thousand are looked at five times a second at most."""
LOOKS_LEFT_OUT_MAX = 5
"""Looks that are left out one after the other because nothing was written since the last."""
AWAITED_SECONDS = 30.0
"""How long a node tells others of ends after it heard that one of them waits."""

AWAITED = Topic(f"awaited{REPEATED}")
"""Some node waits for runs to be over."""
Waiter = asyncio.Future[Run | None]


class Waiting:
    """Raises the errors of `errors`, nothing else."""

    def __init__(self, context: Context) -> None:
        self._store, self._signal, self._elapsed = context.store, context.signal, context.clock.monotonic
        self._waiters: dict[str, list[Waiter]] = {}
        self._waiting = 0
        self.closed = False
        """Whether this node is stopped, so that no caller may wait here."""
        self._watching: asyncio.Task[None] | None = None
        self._deaf: Callable[[], None] | None = None
        """Ends the subscription to ends, which lasts while a caller waits."""
        self._hurried = asyncio.Event()
        self._told_until = -AWAITED_SECONDS
        self._speaking = False
        """What we publish wakes ourselves too, but is no news to us."""
        self._signal.subscribe(AWAITED, self._heard_awaited)

    async def until_over(self, run_id: str, seconds: float | None) -> Run:
        """The run once it is over, or as it is after this long (None: wait on). Raises NotFound."""
        if seconds == 0:
            return await run_of_id(self._store, run_id)
        waiter: Waiter = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(run_id, [])
        waiters.append(waiter)
        self._waiting += 1
        self._deaf = self._deaf or self._signal.subscribe(ENDED, self._heard_end)
        timer = None
        try:
            run = await run_of_id(self._store, run_id)
            if run.finished or self.closed or self._waiting > RUN_WAITERS_MAX:
                return run
            if seconds is not None:
                timer = asyncio.get_running_loop().call_later(seconds, _answer, waiter, None)
            if self._watching is None:
                self._watching = asyncio.create_task(self._watch(), name="horarium-waiting")
            return await waiter or await run_of_id(self._store, run_id)
        finally:
            self._waiting -= 1
            if not self._waiting and self._deaf is not None:
                self._deaf()
                self._deaf = None
            waiter.cancel()
            waiters.remove(waiter)
            if not waiters and self._waiters.get(run_id) is waiters:
                del self._waiters[run_id]
            if timer is not None:
                timer.cancel()

    def settled(self, runs: Sequence[Run]) -> None:
        """These were written by this process."""
        if self._waiters:
            for run in runs:
                if run.finished:
                    self._tell(run.id, run)
        if self._told_until > self._elapsed() and any(run.finished for run in runs):
            self._speaking = True
            self._signal.publish(ENDED)
            self._speaking = False

    def open(self) -> None:
        """Callers may wait again."""
        self.closed = False

    def close(self) -> None:
        """Let every caller have its run as it is, and let none wait any more."""
        self.closed = True
        for run_id in list(self._waiters):
            self._tell(run_id, None)

    def _tell(self, run_id: str, run: Run | None) -> None:
        for waiter in self._waiters.get(run_id, ()):
            _answer(waiter, run)

    def _heard_awaited(self) -> None:
        if not self._speaking:
            self._told_until = self._elapsed() + AWAITED_SECONDS

    def _heard_end(self) -> None:
        if not self._speaking:
            self._hurried.set()

    async def _watch(self) -> None:
        written, left_out, said_at = None, 0, -AWAITED_SECONDS
        try:
            while self._waiters:
                if self._elapsed() - said_at >= AWAITED_SECONDS / 3:
                    said_at = self._elapsed()
                    self._speaking = True
                    self._signal.publish(AWAITED)
                    self._speaking = False
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._hurried.wait(), LOOK_SECONDS)
                before, written = written, self._signal.writes()
                if not self._hurried.is_set() and written is not None and written == before:
                    left_out += 1
                    if left_out <= LOOKS_LEFT_OUT_MAX:
                        continue
                left_out = 0
                self._hurried.clear()
                with suppress(Outage):
                    await self._look(list(self._waiters))
                await asyncio.sleep(len(self._waiters) * PAUSE_SECONDS_EACH)
        finally:
            self._watching = None

    async def _look(self, run_ids: Sequence[str]) -> None:
        for start in range(0, len(run_ids), BATCH_MAX):
            asked = run_ids[start : start + BATCH_MAX]
            for run_id, run in zip(asked, await self._store.get_runs(asked), strict=True):
                if run is None or run.finished:
                    self._tell(run_id, run)


def _answer(waiter: Waiter, run: Run | None) -> None:
    if not waiter.done():
        waiter.set_result(run)
