"""The keeper: renews the leases of this node's runs, ends those over their time, passes cancels on.

Work goes on while the store can't be reached, also when its lease has ended: it is lost only once the store says so,
since another claim was made."""

from __future__ import annotations

from collections.abc import Sequence

from horarium.clock import Clock, Instant, to_wall
from horarium.errors import Outage
from horarium.ports import CANCEL, Topic
from horarium.services.leases.attempt import CANCEL_AGAIN_SECONDS, Attempt, Stop
from horarium.services.leases.leases import Leases
from horarium.services.loop.service import Service, Wake
from horarium.services.performing.performing import Performing


class Keeper(Service):
    """The service that keeps leases. `leased` is set by `performing` when there is a lease to look after soon."""

    name = "keeper"
    topics: tuple[Topic, ...] = (CANCEL,)

    def __init__(self, performing: Sequence[Performing], leases: Leases, leased: Wake, clock: Clock) -> None:
        self.wake = leased
        self._performing = tuple(performing)
        self._leases = leases
        self._clock = clock
        self._asked = False

    def signalled(self) -> None:
        """A cancel was asked, perhaps for a run that was claimed and has not begun: none of these begins before the
        store has been asked about it."""
        self._asked = True
        for one in self._performing:
            if one.waiting.hold_all():
                one.room.set()

    def looks(self) -> bool:
        return self._asked or any(one.attempts or one.unstoppable.log.waits for one in self._performing)

    async def step(self, now: Instant) -> Instant | None:
        if self._asked:
            self._asked = False
            try:
                await self._leases.beat(self._lively())
            except Outage:
                self._asked = True
                raise
        steady = self._clock.steady()
        for attempt in self._lively():
            if attempt.deadline is not None and attempt.deadline <= steady:
                attempt.end(Stop.TIMEOUT, steady)
                self._leases.timed_out.append(attempt.claim)
        await self._leases.beat([attempt for attempt in self._lively() if attempt.wants_beat(steady)])
        wakes = [min(a.renew_at, a.deadline or a.renew_at) for a in self._lively()]
        for one in self._performing:
            one.unstoppable.log.tell_rest(now)
            wakes += self._cancel_again(one, now)
        return to_wall(self._clock, min(wakes)) if wakes else None

    def _lively(self) -> list[Attempt]:
        return [attempt for one in self._performing for attempt in one.lively()]

    def _cancel_again(self, performing: Performing, now: Instant) -> list[Instant]:
        """Cancel those again that were cancelled and still run. Returns when to do so next."""
        told = [attempt for attempt in performing.attempts.values() if attempt.stop is not None]
        steady = self._clock.steady()
        for attempt in told:
            if attempt.cancel_again_at <= steady:
                performing.unstoppable.log.write(
                    now, "run %s of %s: it was cancelled %d s ago (%s), its lease is given up, and it goes on; "
                    "it is cancelled again, and keeps its place until it ends",
                    attempt.run.id, attempt.run.queue, CANCEL_AGAIN_SECONDS, attempt.stop and attempt.stop.value,
                )  # fmt: skip
                attempt.cancel(steady)
        return [attempt.cancel_again_at for attempt in told]
