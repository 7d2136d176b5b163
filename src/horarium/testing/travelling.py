"""Travel in time: a program's jobs at their instants, and its handlers really called, without waiting.

    async with travel(scheduler, "2027-03-27T00:00+01:00") as clock:
        await clock.advance("2d")
        assert clock.ran("nightly") == ["2027-03-27T03:00+01:00", "2027-03-28T03:00+02:00"]

The scheduler is on a store in memory meanwhile, and its services run on the event loop of the test, in virtual time
(`virtual.py`). Of the services only those go on that runs need; the ones that look again and again whether a signal was
lost, or show others that this node lives, would be all that happens in a year.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from math import inf
from types import TracebackType
from typing import Any

from horarium.clock import SECOND, Instant, to_datetime, to_instant
from horarium.delivery.handler import HandlerDelivery
from horarium.errors import InvalidRequest
from horarium.library.one_offs import delay_seconds
from horarium.library.scheduler import Scheduler
from horarium.library.sync import SyncScheduler
from horarium.library.values import Run, runs_page
from horarium.ports import PAGE_MAX, RunFilter
from horarium.stores.memory import MemoryStore
from horarium.testing.clock import ManualClock
from horarium.testing.swapping import at_once, in_memory, store_of
from horarium.testing.virtual import VirtualTime

ROLES = ("planner", "rescuer")
CARRYING = ("applier", "calendars")
"""Services that carry a change of a definition to what depends on it: they do so before each move."""
LEFT_OUT = ("store", "tallies", "serving", "troubles", "sweeper", *CARRYING)
"""Services that nothing in a test waits for."""
WATCHED = ("keeper", "rescuer")
"""Services that look once a second after a run that is under way."""
WATCH_SECONDS = 1.0
WATCHES = 3
"""How many looks are due after a run is over, in case it ended too late."""
CLOSE_SECONDS = 60.0
"""How far time goes on for work that has to stop at the end."""


class Moment(datetime):
    """An instant that equals its text too: `clock.ran("job") == ["2027-03-27T03:00+01:00"]`."""

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return self == moment_of(other)
        return super().__eq__(other)

    __hash__ = datetime.__hash__

    def __repr__(self) -> str:
        return repr(self.isoformat(timespec="auto").replace("+00:00", "Z"))


def moment_of(given: datetime | str) -> datetime:
    """An aware datetime, or its text. Raises InvalidRequest."""
    try:
        at = datetime.fromisoformat(given) if isinstance(given, str) else given
    except ValueError:
        at = None
    if not isinstance(at, datetime):
        raise InvalidRequest(f"{given!r} is no instant; give one as 2027-03-27T00:00+01:00")
    if at.tzinfo is None:
        raise InvalidRequest(f"{given!r} has no offset from UTC; give one as 2027-03-27T00:00+01:00")
    return at


def _moment(at: datetime) -> Moment:
    return Moment(at.year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond, at.tzinfo)


class Travelled:
    """The time of one travel, and the runs in it."""

    def __init__(self, scheduler: Scheduler, start: Instant) -> None:
        self._scheduler = scheduler
        self._clock = ManualClock(start)
        self._time: VirtualTime | None = None
        self._store: MemoryStore | None = None
        self._watches = 0

    def now(self) -> datetime:
        """The present, as an aware datetime in UTC."""
        return _moment(to_datetime(self._clock.now()))

    def ran(self, name: str) -> list[Moment]:
        """The fire times of the runs of this job that have begun, or of one-off runs of the handler of this name:
        once for each run, however many attempts it took. In order; each equals its text with an offset. After the
        block, too."""
        return [_moment(run.fire_at) for run in self.runs(name) if run.started_at is not None]

    def runs(self, name: str | None = None) -> list[Run]:
        """The runs of this job, or one-off runs of the handler of this name (left out: all), by fire time: with their
        state, result and error."""
        assert self._store is not None
        store, after = self._store, None
        found: list[Run] = []
        while True:
            page = at_once(store.list_runs(RunFilter(), after, PAGE_MAX))
            found += runs_page(page, self._clock).items
            if (after := page.next_after) is None:
                break
        ours = [
            run for run in reversed(found) if name in (None, run.job) or (not run.job and run.queue == _queue(name))
        ]
        return sorted(ours, key=lambda run: run.fire_at)

    # ---- on the event loop

    async def _begin(self) -> None:
        scheduler = self._scheduler
        self._time = VirtualTime(self._clock, self._busy, self._occupied, self._moved)
        self._time.hold()
        self._store = store_of(scheduler)
        await scheduler.start()
        loops = scheduler._runtime._loops
        assert loops is not None
        loops.stop_looking()
        await loops.end(*LEFT_OUT)
        await self._advance(0.0)

    async def _advance(self, seconds: float) -> None:
        if self._time is None:
            raise InvalidRequest("travel: it is over; advance the clock within the block")
        if not 0 <= seconds < inf:
            raise InvalidRequest(f"travel: time goes forward only, not by {seconds:g} s")
        for service in self._assembly().services:
            if service.name in CARRYING:
                service.signalled()
                await service.step(self._clock.now())
                while service.under_way:
                    await service.step(self._clock.now())
        await self._time.move(seconds)

    async def _finish(self) -> None:
        """Stop: work that is under way is interrupted."""
        time, self._time = self._time, None
        if time is None:
            return
        try:
            time.let_pass(CLOSE_SECONDS)
            await self._scheduler.stop(0)
            await self._scheduler.close()
        finally:
            time.release()

    def _assembly(self) -> Any:
        return self._scheduler._runtime._assembly

    def _busy(self) -> bool:
        assembly = self._assembly()  # none yet while functions of `on_startup` wait
        return assembly is not None and any(
            each.busy for each in assembly.deliveries if isinstance(each, HandlerDelivery)
        )

    def _occupied(self) -> bool:
        return any(each.attempts for each in self._assembly()._performing)

    def _moved(self) -> float | None:
        self._watches = WATCHES if self._occupied() else max(0, self._watches - 1)
        loops = self._scheduler._runtime._loops
        if self._watches and loops is not None:
            loops.look(*WATCHED)
        return WATCH_SECONDS if self._watches else None


def _queue(handler: str | None) -> str:
    return f"handler/{handler}"


def _seconds(delta: timedelta | str | float) -> float:
    return delay_seconds(delta)


class Clock(Travelled):
    """The time in a test with asyncio."""

    async def advance(self, delta: timedelta | str | float) -> None:
        """Let time pass: a timedelta, seconds, or a text such as `2d` or `1h30m`. Runs that fall due until then have
        been performed when it returns, unless they themselves wait for a later time."""
        await self._advance(_seconds(delta))

    async def advance_to(self, at: datetime | str) -> None:
        """Let time pass until this instant."""
        await self._advance((to_instant(moment_of(at)) - self._clock.now()) / SECOND)


class SyncClock(Travelled):
    """The time in a test without asyncio."""

    def __init__(self, scheduler: SyncScheduler, start: Instant) -> None:
        super().__init__(scheduler._scheduler, start)
        self._sync = scheduler

    def advance(self, delta: timedelta | str | float) -> None:
        """As `Clock.advance`; it waits until that is done."""
        self._sync._call(lambda: self._advance(_seconds(delta)))

    def advance_to(self, at: datetime | str) -> None:
        """Let time pass until this instant."""
        self._sync._call(lambda: self._advance((to_instant(moment_of(at)) - self._clock.now()) / SECOND))


class travel:  # noqa: N801  # used as a word: `async with travel(...)`
    """A block in which this scheduler is on an empty store in memory, at the instant `start` (an aware datetime, or its
    text with an offset): `async with travel(scheduler, start) as clock`, or `with` in a test without asyncio. Jobs made
    by decorator are declared, services run, handlers are called. HTTP, queue and bus targets are not: their runs stay
    pending, as `clock.runs` shows."""

    def __init__(self, scheduler: Scheduler | SyncScheduler, start: datetime | str) -> None:
        self._given = scheduler
        self._start = to_instant(moment_of(start))
        self._swap: AbstractContextManager[None] | None = None
        self._clock: Travelled | None = None

    def _enter(self, clock: Travelled, scheduler: Scheduler | SyncScheduler) -> None:
        self._clock = clock
        self._swap = in_memory(scheduler, clock=clock._clock, roles=ROLES)
        self._swap.__enter__()

    def _leave(self) -> None:
        assert self._swap is not None
        self._swap.__exit__(None, None, None)

    async def __aenter__(self) -> Clock:
        if isinstance(self._given, SyncScheduler):
            raise InvalidRequest("travel: a SyncScheduler travels in a plain block: `with travel(scheduler, ...)`")
        clock = Clock(self._given, self._start)
        self._enter(clock, self._given)
        try:
            await clock._begin()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return clock

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._clock is not None
        try:
            await self._clock._finish()
        finally:
            self._leave()

    def __enter__(self) -> SyncClock:
        given = self._given if isinstance(self._given, SyncScheduler) else SyncScheduler(self._given)
        clock = SyncClock(given, self._start)
        self._enter(clock, given)
        try:
            given._call(clock._begin)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return clock

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        clock = self._clock
        assert isinstance(clock, SyncClock)
        try:
            clock._sync._call(clock._finish)
        finally:
            self._leave()
