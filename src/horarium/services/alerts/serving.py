"""Says in the log which queues no worker serves: runs are due there, and none is claimed.

A look is taken now and then, and only what two looks in a row show is said: between the end of one run and the claim of
the next there may be none claimed. It takes the counts that are shared with those who ask for them: so where counting
takes long, it is done once, before anyone asks, and is never too old to be given.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from horarium.clock import MINUTE, SECOND, Instant
from horarium.ports import QueueStats, Stats
from horarium.rules.serving import unserved_words
from horarium.services.loop.service import Paced, Wake

LOOK_EVERY = 30 * SECOND
SAY_EVERY = 10 * MINUTE

log = logging.getLogger("horarium")


class Serving(Paced):
    """Watches that every queue is served."""

    name = "serving"
    every = LOOK_EVERY

    def __init__(self, count: Callable[[], Awaitable[Stats]]) -> None:
        self.wake = Wake()
        self._count = count
        self._seen: frozenset[str] = frozenset()
        self._said: dict[str, Instant] = {}

    async def work(self, now: Instant) -> None:
        stats = await self._count()
        unserved = [queue for queue in stats.queues if queue.unserved]
        for queue in unserved:
            if queue.queue in self._seen:
                self._say(queue, now)
        self._seen = frozenset(queue.queue for queue in unserved)
        self._said = {queue: at for queue, at in self._said.items() if queue in self._seen}

    def _say(self, queue: QueueStats, now: Instant) -> None:
        said = self._said.get(queue.queue)
        if queue.oldest_due_at is None or (said is not None and said <= now < said + SAY_EVERY):
            return
        self._said[queue.queue] = now
        age = (now - queue.oldest_due_at) // SECOND
        log.warning(
            "%s, the oldest since %d s",
            unserved_words(queue.queue, queue.due),
            age,
            extra={"queue": queue.queue, "due": queue.due, "oldest_due_seconds": age},
        )
