"""Work that goes on after its attempt is over: a thread, which can't be stopped from outside.

Its lease is given up and its outcome is void. It keeps its place until it ends, so that there is never more of it than
there are places.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from horarium.clock import Clock
from horarium.services.leases.attempt import Attempt
from horarium.services.loop.quiet import QuietLog


class Unstoppable:
    """Stuck work in one set of slots. `ended` is called when some of it has ended."""

    def __init__(self, places: int, clock: Clock, ended: Callable[[], None]) -> None:
        self._places = places
        self._clock = clock
        self.log = QuietLog("work that did not stop in time")
        self._ended = ended
        self.work: dict[Attempt, asyncio.Future[Any]] = {}

    def __len__(self) -> int:
        return len(self.work)

    def __iter__(self) -> Iterator[Attempt]:
        return iter(self.work)

    @property
    def everywhere(self) -> bool:
        """Whether it takes every place."""
        return len(self.work) >= self._places

    def add(self, attempt: Attempt, over: asyncio.Future[Any]) -> None:
        """This work goes on until `over` is done."""
        self.work[attempt] = over
        over.add_done_callback(lambda over: self._forget(attempt, over))
        self.log.write(
            self._clock.now(), "run %s of %s: it does not stop (%s); its lease is given up, its outcome is void, "
            "and it keeps its place until it ends (%d of %d are so taken)",
            attempt.run.id, attempt.run.queue, attempt.stop and attempt.stop.value, len(self.work), self._places,
        )  # fmt: skip

    def _forget(self, attempt: Attempt, over: asyncio.Future[Any]) -> None:
        del self.work[attempt]
        if not over.cancelled():
            over.exception()
        message = "run %s of %s: it has ended; its outcome is void"
        self.log.write(self._clock.now(), message, attempt.run.id, attempt.run.queue)
        self._ended()

    def names(self) -> str:
        """The queues that it came from, for a message."""
        queues = Counter(attempt.run.queue for attempt in self.work)
        return ", ".join(f"{queue} ({count})" for queue, count in queues.most_common(5))
