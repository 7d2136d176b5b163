"""Callers that wait for runs to be over: any number of them, one watcher.

The end of a run that this process writes is known here at once. Where others wait, a node says so, and hears of
every end that is written elsewhere, by the run's name where only a few ended; where no one waits, that costs nothing.
Looks at all runs that are waited for keep it correct with all of these words lost: the first soon, since the others may
not have heard yet that someone waits, later ones each second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf

from horarium.errors import Outage
from horarium.model import Run
from horarium.operations.writing.context import Context
from horarium.operations.writing.named import run_of_id
from horarium.ports import ENDED, ENDED_RUN, REPEATED, Topic

RUN_WAIT_SECONDS_MAX = 60.0
"""Of one request."""
RUN_WAITERS_MAX = 10_000
"""Callers that wait at one time in this process; one more is answered at once."""
LOOK_SECONDS_MIN, LOOK_SECONDS = 0.02, 1.0
"""From the first caller to the first look at all; the pause doubles with each, up to this for up to a thousand runs."""
PAUSE_SECONDS_EACH = 0.0001
"""From one look at all to the next at least, for each run: a thousand are looked at ten times a second at most, where
ends come in such numbers that they are not named. And ten times as long where nothing is heard."""
LOOKED_AT = 200
"""Runs of one read; those that are named meanwhile come with the next."""
NAMED_MAX = 20
"""Ends that are named, of those that are written at once; of more it is said that there are some."""
AWAITED_SECONDS = 30.0
"""How long a node tells others of ends after it heard that one of them waits."""

AWAITED = Topic(f"awaited{REPEATED}")
"""Some node waits for runs to be over."""
Waiter = asyncio.Future[Run | None]


def ended_topic(run_id: str) -> Topic:
    """This run is over. Where words were lost, `ENDED` wakes those that wait for it."""
    return Topic(f"{ENDED_RUN}{run_id}{REPEATED}")


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
        self._named: set[str] = set()
        """Runs that are said to be over."""
        self._looked_at = self._look_at = -inf
        """When all that are waited for were last looked at, and will be next: times of the event loop."""
        self._told_until = -AWAITED_SECONDS
        self._speaking = False
        """What we publish wakes ourselves too, but is no news to us."""
        self._signal.subscribe(AWAITED, self._heard_awaited)

    async def until_over(self, run_id: str, seconds: float | None) -> Run:
        """The run once it is over, or as it is after this long (None: wait on). Raises NotFound."""
        if seconds == 0:
            return await run_of_id(self._store, run_id)
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        waiters = self._waiters.setdefault(run_id, [])
        waiters.append(waiter)
        self._waiting += 1
        self._deaf = self._deaf or self._signal.subscribe(ENDED, self._heard_end)
        deaf = self._signal.subscribe(ended_topic(run_id), partial(self._heard_end, run_id))
        timer = None
        try:
            run = await run_of_id(self._store, run_id)
            if run.finished or self.closed or self._waiting > RUN_WAITERS_MAX:
                return run
            if seconds is not None:
                timer = loop.call_later(seconds, _answer, waiter, None)
            if self._watching is None:
                self._look_at = loop.time() + LOOK_SECONDS_MIN
                self._watching = asyncio.create_task(self._watch(), name="horarium-waiting")
            return await waiter or await run_of_id(self._store, run_id)
        finally:
            self._waiting -= 1
            deaf()
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
        ended = [run for run in runs if run.finished]
        if self._waiters:
            for run in ended:
                self._tell(run.id, run)
        if ended and self._told_until > self._elapsed():
            self._say([ended_topic(run.id) for run in ended] if len(ended) <= NAMED_MAX else [ENDED])

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

    def _say(self, topics: Sequence[Topic]) -> None:
        self._speaking = True
        for topic in topics:
            self._signal.publish(topic)
        self._speaking = False

    def _heard_awaited(self) -> None:
        if not self._speaking:
            self._told_until = self._elapsed() + AWAITED_SECONDS

    def _heard_end(self, run_id: str | None = None) -> None:
        if not self._speaking:
            if run_id is None:
                paced_at = self._looked_at + len(self._waiters) * PAUSE_SECONDS_EACH
                self._look_at = min(self._look_at, paced_at)
            else:
                self._named.add(run_id)
            self._hurried.set()

    async def _watch(self) -> None:
        time = asyncio.get_running_loop().time
        began, said_at = time(), -AWAITED_SECONDS
        try:
            while self._waiters:
                if self._elapsed() - said_at >= AWAITED_SECONDS / 3:
                    said_at = self._elapsed()
                    self._say([AWAITED])
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._hurried.wait(), self._look_at - time())
                self._hurried.clear()
                asked = tuple(self._named & self._waiters.keys())
                self._named.clear()
                if (now := time()) >= self._look_at:
                    asked, self._looked_at = tuple(self._waiters), now
                    pause = max(LOOK_SECONDS, 10 * len(asked) * PAUSE_SECONDS_EACH)
                    self._look_at = now + min(pause, max(LOOK_SECONDS_MIN, now - began))
                with suppress(Outage):
                    await self._look(asked)
        finally:
            self._watching = None

    async def _look(self, run_ids: Sequence[str]) -> None:
        for start in range(0, len(run_ids), LOOKED_AT):
            asked = [*run_ids[start : start + LOOKED_AT], *self._named]
            self._named.clear()
            for run_id, run in zip(asked, await self._store.get_runs(asked), strict=True):
                if run is None or run.finished:
                    self._tell(run_id, run)


def _answer(waiter: Waiter, run: Run | None) -> None:
    if not waiter.done():
        waiter.set_result(run)
