"""Long-polled claims: many waiting workers, one prober.

Waiters that ask for the same queues stand in one line and are served in order. Only the head of each line asks the
store, so a thousand idle workers cost no more queries than one. A waiter that leaves takes nothing with it: what was
claimed for it in the same moment is released.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from horarium.clock import Clock, Instant
from horarium.model import Released, Run, RunChange
from horarium.ports import BATCH_MAX, Claimed, Signal, Store
from horarium.settling import settle

WAIT_SECONDS_MAX = 60.0
CLAIM_MAX = BATCH_MAX
WAITERS_MAX = 10_000
"""Workers that wait at one time; others are answered at once, with what there is."""


class Waiter:
    """One worker that waits for runs."""

    __slots__ = ("answer", "limit", "worker")

    def __init__(self, limit: int, worker: str, answer: asyncio.Future[Claimed]) -> None:
        self.limit = limit
        self.worker = worker
        self.answer = answer


class Claims:
    """The service that hands runs to long-polling workers."""

    name = "claims"
    topics: tuple[str, ...] = ()

    def __init__(
        self,
        store: Store,
        clock: Clock,
        signal: Signal,
        taken: Callable[[Sequence[Run]], None] = lambda runs: None,
    ) -> None:
        self._taken = taken
        self._store = store
        self._clock = clock
        self._signal = signal
        self._lines: OrderedDict[tuple[str, ...], deque[Waiter]] = OrderedDict()
        self._subscriptions: dict[tuple[str, ...], list[Callable[[], None]]] = {}
        self._closed = False
        self.wake: Callable[[], None] = lambda: None

    @property
    def waiting(self) -> int:
        """How many workers wait at present."""
        return sum(map(len, self._lines.values()))

    async def claim(self, queues: Sequence[str], limit: int, worker: str, wait_seconds: float = 0.0) -> Claimed:
        """Claim up to `limit` due runs of these queues; where none is due, wait for one for up to `wait_seconds`."""
        line = tuple(sorted(set(queues)))
        may_wait = wait_seconds > 0 and not self._closed and self.waiting < WAITERS_MAX
        if not may_wait or not self._lines.get(line):
            claimed = await self._take_for_caller(line, limit, worker)
            if claimed.runs or not may_wait or self._closed:
                return claimed
        return await self._wait(line, limit, worker, min(wait_seconds, WAIT_SECONDS_MAX))

    async def _take_for_caller(self, line: tuple[str, ...], limit: int, worker: str) -> Claimed:
        """Take at once. A caller that leaves meanwhile does not undo the claim, so what it brought is given back."""
        taking = asyncio.ensure_future(self._take(line, limit, worker))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            claimed = await taking
            if claimed.runs:
                await self._release(claimed)
            raise

    async def _take(self, line: tuple[str, ...], limit: int, worker: str) -> Claimed:
        now = self._clock.now()
        claimed = await self._store.claim_runs(line, min(limit, CLAIM_MAX), worker, now, now)
        if claimed.runs:
            self._taken(claimed.runs)
        return claimed

    async def _wait(self, line: tuple[str, ...], limit: int, worker: str, seconds: float) -> Claimed:
        loop = asyncio.get_running_loop()
        waiter = Waiter(limit, worker, loop.create_future())
        timer = loop.call_later(seconds, _give_up, waiter.answer)
        self._join(line, waiter)
        try:
            return await waiter.answer
        except asyncio.CancelledError:
            await asyncio.shield(self._give_back(waiter))
            raise
        finally:
            timer.cancel()
            self._leave(line, waiter)

    async def _give_back(self, waiter: Waiter) -> None:
        """Release what was handed over to somebody who has just left."""
        if waiter.answer.done() and not waiter.answer.cancelled():
            await self._release(waiter.answer.result())

    async def _release(self, claimed: Claimed) -> None:
        now = self._clock.now()
        changes = [
            RunChange(
                settle(run, None, Released("its worker left before it was handed over"), now), run.token, run.state
            )
            for run in claimed.runs
        ]
        await self._store.settle_runs(changes, now)
        self.wake()

    def _join(self, line: tuple[str, ...], waiter: Waiter) -> None:
        if line not in self._lines:
            self._lines[line] = deque()
            self._subscriptions[line] = [
                self._signal.subscribe(f"queue:{queue}", lambda: self.wake()) for queue in line
            ]
        self._lines[line].append(waiter)
        self.wake()

    def _leave(self, line: tuple[str, ...], waiter: Waiter) -> None:
        waiters = self._lines.get(line)
        if waiters is None:
            return
        if waiter in waiters:
            waiters.remove(waiter)
        if not waiters:
            del self._lines[line]
            for unsubscribe in self._subscriptions.pop(line):
                unsubscribe()

    async def step(self, now: Instant) -> Instant | None:
        """Serve each line as far as runs are due; one that got something comes last the next time. When the next run
        of a line falls due, or None."""
        wakes: list[Instant] = []
        for line in list(self._lines):
            next_due = await self._serve(line)
            if next_due is not None:
                wakes.append(next_due)
        return min(wakes, default=None)

    async def _serve(self, line: tuple[str, ...]) -> Instant | None:
        while waiters := self._lines.get(line):
            waiter = waiters[0]
            if waiter.answer.done():
                waiters.popleft()
                continue
            claimed = await self._take(line, waiter.limit, waiter.worker)
            if not claimed.runs:
                return claimed.next_due_at
            if waiter.answer.done():
                await self._release(claimed)
            else:
                waiter.answer.set_result(claimed)
            if waiter in waiters:
                waiters.remove(waiter)
            if line in self._lines:
                self._lines.move_to_end(line)
        return None

    def close(self) -> None:
        """Send every waiter home empty-handed, and let nobody wait any longer."""
        self._closed = True
        for waiters in list(self._lines.values()):
            for waiter in waiters:
                _give_up(waiter.answer)


def _give_up(answer: asyncio.Future[Claimed]) -> None:
    if not answer.done():
        answer.set_result(Claimed())
