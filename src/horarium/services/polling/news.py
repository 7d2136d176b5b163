"""Events of changes, for open pages and programs, so that they need not poll.

It says what kind of thing changed and nothing more; who listens then reads what it shows. In this process that is known
at once; of other nodes' work it is seen by the counts of the store, looked at every few seconds. With no
listener, nothing is looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from horarium.errors import Outage
from horarium.ports import JOBS, Signal, Stats
from horarium.siblings import ALONE, Siblings

LOOK_SECONDS = 1.0
COUNTED_EVERY = 3
"""Looks between two counts of the store."""
COUNT_SECONDS = 1.5
"""A store that takes longer to be counted is not known to answer."""
AWAY = "away"
"""What pages hear first of a store that does not answer; programs hear of it as of any change."""
SILENCE_SECONDS = 15.0
"""After this long without news a listener hears that all is well with the line."""
SEEN = "seen"
LISTENERS_MAX = 1_000
CALLER_LISTENERS_MAX = 100
"""Of one key or person."""
PAGE_SECONDS = 0.3
"""What looks again at each piece of news hears of the next one after this long for each listener: so all pages that are
open cost about the same, however many they are."""
TURN_SECONDS = 0.015
"""Listeners that look again hear of a change one after the other, this far apart: of all that look at once most would
be refused."""

Kinds = frozenset[str]


class News:
    """Changes, for any number of listeners. `seen`: a number that grows with all that this process did."""

    def __init__(self, count: Callable[[], Awaitable[Stats]], signal: Signal, seen: Callable[[], int]) -> None:
        self._count = count
        self._signal = signal
        self._seen = seen
        self._listeners: dict[asyncio.Event, set[str]] = {}
        self._callers: Counter[str] = Counter()
        self._watching: asyncio.Task[None] | None = None
        self._counting: asyncio.Future[Stats] | None = None
        self._jobs_changed = False
        self._ended = asyncio.Event()
        self._siblings: Siblings = ALONE

    def join(self, siblings: Siblings) -> None:
        """Hear of what other processes of this server do as soon as of what this one does."""
        self._siblings = siblings
        siblings.hear(SEEN, lambda said: str(self._seen()).encode())

    async def _seen_everywhere(self) -> int:
        return self._seen() + sum(int(answer) for answer in await self._siblings.ask(SEEN) if answer)

    @property
    def _closed(self) -> bool:
        return self._ended.is_set()

    async def rest(self) -> None:
        """Return when a listener that looks again at all news should hear of the next, or all are let go."""
        await self._pause(len(self._listeners) * PAGE_SECONDS)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), seconds)

    def full(self, caller: str) -> bool:
        """Whether there are as many listeners as there may be, in all or of this caller ("": of no one's)."""
        return len(self._listeners) >= LISTENERS_MAX or self._callers[caller] >= CALLER_LISTENERS_MAX

    async def listen(self, caller: str = "", *, paced: bool = False) -> AsyncIterator[Kinds]:
        """Changes, as they happen (`jobs`, `runs`); now and then nothing, to show that the line stands. `paced`: in
        turn with the others."""
        if caller:
            self._callers[caller] += 1
        waking, kinds = asyncio.Event(), set[str]()
        self._listeners[waking] = kinds
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())
        try:
            while not self._closed:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(waking.wait(), SILENCE_SECONDS)
                if paced and waking.is_set():
                    await self._pause(TURN_SECONDS * list(self._listeners).index(waking))
                waking.clear()
                told = frozenset(kinds)
                kinds.clear()
                if not self._closed:
                    yield told
        finally:
            del self._listeners[waking]
            self._callers -= Counter([caller])

    def close(self) -> None:
        """Let every listener go."""
        self._ended.set()
        for waking in self._listeners:
            waking.set()

    async def _watch(self) -> None:
        stop = self._signal.subscribe(JOBS, self._note_jobs)
        again: set[str] = set()
        try:
            seen, counts, looks = await self._seen_everywhere(), await self._counts(), 0
            while self._listeners and not self._closed:
                await asyncio.sleep(LOOK_SECONDS)
                looks += 1
                changed: set[str] = set()
                if self._jobs_changed:
                    self._jobs_changed = False
                    changed.add("jobs")
                if (all_seen := await self._seen_everywhere()) != seen:
                    seen = all_seen
                    changed.add("runs")
                if looks % COUNTED_EVERY == 0:
                    before, counts = counts, await self._counts()
                    if counts != before:
                        changed |= {"jobs", "runs"} if counts else {"jobs", "runs", AWAY}
                self._tell(changed | again)
                # A page may show a cached read of up to a look before: so each event is sent twice.
                again = changed - {AWAY}
        finally:
            stop()
            self._watching = None
            if self._counting is not None:
                self._counting.cancel()
                self._counting = None

    def _note_jobs(self) -> None:
        self._jobs_changed = True

    def _tell(self, changed: set[str]) -> None:
        if changed:
            for waking, kinds in self._listeners.items():
                kinds |= changed
                waking.set()

    async def _counts(self) -> Any:
        """None: the store does not answer. That is news too: who looks is told so."""
        self._counting = self._counting or asyncio.ensure_future(self._count())
        await asyncio.wait((self._counting,), timeout=COUNT_SECONDS)
        if not self._counting.done():
            return None
        counting, self._counting = self._counting, None
        try:
            stats = counting.result()
        except Outage:
            return None
        return stats.jobs, stats.jobs_enabled, stats.queues
