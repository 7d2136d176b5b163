"""Long-polled claims: many waiting workers, one prober.

Waiters that ask for the same queues are in one line and are served in order. Only the head of each line asks the
store, so a thousand idle workers cost no more queries than one, and a line is looked at only when one of its queues was
signalled, when its next run falls due, or after a pause. As long as runs come, more waiters are served at once, each
with a claim of its own: a store that shares one wait for the disk among concurrent writes then does so.

The hard case is a waiter that leaves. It takes nothing with it: runs claimed for it meanwhile are released, and where
an outage keeps that from being written, the service goes on trying.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Literal

import msgspec
from msgspec import Struct

from horarium.clock import SECOND, Clock, Instant
from horarium.errors import Outage
from horarium.model import Run
from horarium.operations.settling.claiming import Claiming
from horarium.ports import BATCH_MAX, Claimed, Signal, queue_topic
from horarium.rules.holds import stretch_at
from horarium.services.loop.service import Service, Wake
from horarium.siblings import ALONE, Siblings

LEFT = "its worker left before it was handed over"


class LeftClaims:
    """Claims that were handed to no worker, since it left before; each is kept until a release of it was written, after
    an outage too."""

    def __init__(self, claiming: Claiming, wake: Wake) -> None:
        self._claiming = claiming
        self._wake = wake
        self._left: list[Claimed] = []

    def keep(self, claimed: Claimed) -> None:
        """Release this with the next try."""
        if claimed.runs:
            self._left.append(claimed)
            self._wake()

    def keep_answer(self, answer: asyncio.Future[Claimed]) -> None:
        """Release what this brought, if it brought anything."""
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            self.keep(answer.result())

    async def try_release(self) -> None:
        """Release all at once, if the store answers: this node may be about to stop."""
        with suppress(Outage):
            await self.release()

    async def release(self) -> None:
        """Release all. What an outage keeps from being written is kept, for the next try. Raises Outage."""
        while self._left:
            claimed = self._left.pop()
            try:
                await self._claiming.release(claimed, LEFT)
            except BaseException:
                self.keep(claimed)
                raise


WAITING = "waiting"
WAIT_SECONDS_MAX = 60.0
CLAIM_MAX = BATCH_MAX
WAITERS_MAX = 10_000
"""Workers that wait at one time; others are answered at once, with what there is."""
AT_ONCE_MAX = 32
"""Claims under way at one time on behalf of waiters."""
ROUNDS_MAX = 16
"""How often one step goes on with the lines that get something: where work and workers never end, it comes back to
them, and in between looks at those that were signalled meanwhile."""
LINES_PER_SECOND = 100
"""Lines that are looked at each second without any reason to: so often that a lost signal costs a second, unless there
are more lines than this."""


class Waiter:
    """One worker that waits for runs."""

    __slots__ = ("answer", "limit", "worker")

    def __init__(self, limit: int, worker: str, answer: asyncio.Future[Claimed]) -> None:
        self.limit = limit
        self.worker = worker
        self.answer = answer


class WaitingLine:
    """The waiters that ask for the same queues. `due_at`: when the next run falls due, as far as we know."""

    __slots__ = ("asked", "due_at", "leave", "looked_at", "queues", "waiters")

    def __init__(self, queues: tuple[str, ...]) -> None:
        self.queues = queues
        self.waiters: OrderedDict[Waiter, None] = OrderedDict()
        self.asked = True
        self.looked_at: Instant = 0
        self.due_at: Instant | None = None
        self.leave: list[Callable[[], None]] = []

    def wants_look(self, now: Instant, pause: Instant) -> bool:
        """Whether the store should be asked for this line. A clock that went back is a reason too."""
        due = self.due_at is not None and self.due_at <= now
        return self.asked or due or not self.looked_at <= now < self.looked_at + pause


class Waiting(Struct):
    """How many workers wait, by the queues that they wait for, and for how many runs they ask."""

    lines: list[tuple[tuple[str, ...], int, int]]

    @property
    def queues(self) -> dict[str, int]:
        return self._by_queue(1)

    @property
    def places(self) -> dict[str, int]:
        """How many runs they would take at once, for each queue."""
        return self._by_queue(2)

    def _by_queue(self, what: Literal[1, 2]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for line in self.lines:
            for queue in line[0]:
                counts[queue] = counts.get(queue, 0) + line[what]
        return counts

    def workers(self, counts: Callable[[str], bool]) -> int:
        """Those that wait for any of the queues that count."""
        return sum(count for queues, count, _ in self.lines if any(map(counts, queues)))


class Claims(Service):
    """The service that hands runs to long-polling workers."""

    name = "claims"
    by_writes = True

    def __init__(
        self,
        claiming: Claiming,
        clock: Clock,
        signal: Signal,
        taken: Callable[[Sequence[Run]], None] = lambda runs: None,
    ) -> None:
        self._taken = taken
        self._claiming = claiming
        self._clock = clock
        self._signal = signal
        self._lines: OrderedDict[tuple[str, ...], WaitingLine] = OrderedDict()
        self.waiting = 0
        """How many workers wait at present."""
        self._closed = False
        self._siblings: Siblings = ALONE
        self.wake = Wake()
        self._left = LeftClaims(claiming, self.wake)

    def join(self, siblings: Siblings) -> None:
        """Count the workers that wait at other processes of this server, too."""
        self._siblings = siblings
        siblings.hear(WAITING, lambda said: msgspec.json.encode(self._waiting_here()))

    def _waiting_here(self) -> Waiting:
        lines = [line for line in self._lines.values() if line.waiters]
        return Waiting([(one.queues, len(one.waiters), sum(each.limit for each in one.waiters)) for one in lines])

    async def waiting_everywhere(self) -> Waiting:
        """The workers that wait at this server."""
        whole = self._waiting_here()
        for answer in await self._siblings.ask(WAITING):
            if answer:
                whole.lines += msgspec.json.decode(answer, type=Waiting).lines
        return whole

    @property
    def closed(self) -> bool:
        """Whether this node is about to stop, so that no worker may wait here."""
        return self._closed

    async def claim(self, queues: Sequence[str], limit: int, worker: str, wait_seconds: float = 0.0) -> Claimed:
        """Claim up to `limit` due runs of these queues; where none is due, wait for one for up to `wait_seconds`."""
        if worker in (drained := _drained(self._claiming, self._clock.now())):
            await self._claiming.holding.look()
            drained = _drained(self._claiming, self._clock.now())
        line = () if worker in drained else tuple(sorted(set(queues)))
        may_wait = wait_seconds > 0 and not self._closed and self.waiting < WAITERS_MAX
        if not may_wait or line not in self._lines:
            claimed = await self._take_for_caller(line, limit, worker)
            if claimed.runs or not may_wait or self._closed:
                return claimed
        return await self._wait(line, limit, worker, min(wait_seconds, WAIT_SECONDS_MAX))

    async def _take_for_caller(self, queues: tuple[str, ...], limit: int, worker: str) -> Claimed:
        """Take at once. A caller that leaves meanwhile does not undo the claim, so what it brought is given back."""
        taking = asyncio.ensure_future(self._take(queues, limit, worker))
        try:
            await asyncio.sleep(0)  # it begins; a store in memory has answered then, and nothing is left to be shielded
            return taking.result() if taking.done() else await asyncio.shield(taking)
        except asyncio.CancelledError:
            if not taking.done():
                taking.add_done_callback(self._left.keep_answer)
                await asyncio.wait({taking})
            else:
                self._left.keep_answer(taking)
            await self._left.try_release()
            raise

    async def _take(self, queues: tuple[str, ...], limit: int, worker: str) -> Claimed:
        now = self._clock.now()
        claimed = await self._claiming.claim(queues, min(limit, CLAIM_MAX), worker, now, now)
        if claimed.runs:
            self._taken(claimed.runs)
        return claimed

    # ---- waiting

    async def _wait(self, queues: tuple[str, ...], limit: int, worker: str, seconds: float) -> Claimed:
        loop = asyncio.get_running_loop()
        waiter = Waiter(limit, worker, loop.create_future())
        timer = loop.call_later(seconds, _give_up, waiter.answer)
        line = self._join(queues, waiter)
        try:
            return await waiter.answer
        except asyncio.CancelledError:
            self._left.keep_answer(waiter.answer)
            await self._left.try_release()
            raise
        finally:
            timer.cancel()
            self._leave(line, waiter)

    async def give_back(self, claimed: Claimed) -> None:
        """Release runs claimed for a worker that left before the hand-over; in an outage, after it."""
        self._left.keep(claimed)
        await self._left.try_release()

    def _join(self, queues: tuple[str, ...], waiter: Waiter) -> WaitingLine:
        """Join the line. A new line is looked at once: a run may have come since the waiter asked by itself."""
        line = self._lines.get(queues) or self._open(queues)
        line.waiters[waiter] = None
        self.waiting += 1
        return line

    def _open(self, queues: tuple[str, ...]) -> WaitingLine:
        line = self._lines[queues] = WaitingLine(queues)
        line.leave = [self._signal.subscribe(queue_topic(queue), lambda: self._ask(line)) for queue in queues]
        self.wake()
        return line

    def _ask(self, line: WaitingLine) -> None:
        line.asked = True
        self.wake()

    def _leave(self, line: WaitingLine, waiter: Waiter) -> None:
        """Leave the line, if still in it; an empty line is closed."""
        if line.waiters.pop(waiter, waiter) is None:
            self.waiting -= 1
        if not line.waiters and self._lines.get(line.queues) is line:
            del self._lines[line.queues]
            for unsubscribe in line.leave:
                unsubscribe()

    # ---- serving

    def looks(self) -> bool:
        return bool(self._lines)

    async def step(self, now: Instant) -> Instant | None:
        """Serve the lines as far as runs are due: some of each, then some more of those that got some. One that got
        something comes last the next time. When the next run of a line falls due, or None."""
        await self._left.release()
        pause = max(len(self._lines) * SECOND // LINES_PER_SECOND, SECOND)
        lines = [line for line in self._lines.values() if line.wants_look(now, pause)]
        for number in range(ROUNDS_MAX):
            lines = await self._serve(lines, min(2**number, AT_ONCE_MAX))
            if not lines:
                return min((line.due_at for line in self._lines.values() if line.due_at is not None), default=None)
        for line in lines:
            line.asked = True
        return now

    async def _serve(self, lines: Sequence[WaitingLine], width: int) -> list[WaitingLine]:
        """Claim for the first `width` waiters of each line. The lines of which each waiter got something."""
        asks: list[tuple[WaitingLine, Waiter]] = []
        drained = _drained(self._claiming, self._clock.now())
        for line in lines:
            for waiter in [each for each in line.waiters if line.queues and each.worker in drained] if drained else ():
                _give_up(waiter.answer)
                self._leave(line, waiter)
            line.asked = False
            line.looked_at = self._clock.now()
            line.due_at = None
            asks += [(line, waiter) for waiter in islice(line.waiters, width)]
        hungry: set[WaitingLine] = set()
        try:
            for start in range(0, len(asks), AT_ONCE_MAX):
                some = asks[start : start + AT_ONCE_MAX]
                hungry |= await self._serve_some([ask for ask in some if ask[0] not in hungry])
        except BaseException:
            for line in lines:
                line.asked = True
            raise
        return [line for line in lines if line not in hungry and line.waiters]

    async def _serve_some(self, asks: Sequence[tuple[WaitingLine, Waiter]]) -> set[WaitingLine]:
        """One claim for each of these, at once. The lines that had too little. Raises what the store raised, once all
        that was claimed has been handed to a waiter."""
        claims = [self._take(line.queues, waiter.limit, waiter.worker) for line, waiter in asks]
        answers = await asyncio.gather(*claims, return_exceptions=True)
        hungry: set[WaitingLine] = set()
        failures: list[BaseException] = []
        for (line, waiter), claimed in zip(asks, answers, strict=True):
            if isinstance(claimed, BaseException):
                failures.append(claimed)
            elif not claimed.runs:
                hungry.add(line)
                line.due_at = claimed.next_due_at
            elif waiter.answer.done():
                self._left.keep(claimed)
            else:
                self._hand_over(line, waiter, claimed)
        if failures:
            raise failures[0]
        await self._left.release()
        return hungry

    def _hand_over(self, line: WaitingLine, waiter: Waiter, claimed: Claimed) -> None:
        waiter.answer.set_result(claimed)
        self._leave(line, waiter)
        if line.queues in self._lines:
            self._lines.move_to_end(line.queues)

    def close(self) -> None:
        """Answer every waiter with nothing, and accept no more of them."""
        self._closed = True
        for line in list(self._lines.values()):
            for waiter in list(line.waiters):
                _give_up(waiter.answer)


def _drained(claiming: Claiming, now: Instant) -> set[str]:
    """The workers that take no run, as is known here. They wait in the line for no queue, behind which no other is."""
    known = claiming.holding.known
    return {str(hold.scope.worker) for hold in known if hold.scope.worker is not None and stretch_at(hold, now)}


def _give_up(answer: asyncio.Future[Claimed]) -> None:
    if not answer.done():
        answer.set_result(Claimed())
