"""The only loop. A service is `step(now) -> the instant at which it wants to be called again`; waiting, wake-up,
back-off and stop are here, once.

A step that meets an outage is called again after a growing pause. That is logged once for all parts that meet it, and
once more when they work again. A step that fails in any other way is a bug: it is logged, and the loop goes on. A
service that can miss something in between is called once a second beside (`looks`), so that a dropped signal costs at
most a second; so is every one when the wall clock was stepped. The others sleep until the time that they said.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from horarium.clock import SECOND, Clock, Instant
from horarium.errors import Outage
from horarium.ports import WRITTEN, Signal, Topic

POLL_SECONDS = 1.0
LEFT_OUT_MAX = 4
"""How many looks in a row are left out where nothing was written to the store."""
EARLY_SECONDS = 0.02
"""A timer may go off this much before its time."""
STEPPED_SECONDS = 0.02
"""A wall clock that is off by this much from where it was, beside the event loop's, was stepped: work due at an instant
is due at another time."""
WAIT_SECONDS_MAX = 600.0
"""No loop waits longer than this."""
BACKOFF_SECONDS_MIN = 0.1
BACKOFF_SECONDS_MAX = 2.0
"""Firing goes on within this of the end of an outage, however long it was."""

ANEW_SECONDS = 60.0
"""A part that worked for longer than this fails again from the start; one that worked for less still fails."""
STEADY_SECONDS_MIN, STEADY_SECONDS_MAX = 5.0, 20.0
"""For how long such a part must work before it counts as well."""

log = logging.getLogger("horarium")


class Wake:
    """A wake-up: made first, and given to the code that sets it and to the code that waits for it."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Call the service soon, even if it asked for a later time."""
        self._event.set()

    __call__ = set

    def clear(self) -> None:
        """Earlier wake-ups are being dealt with."""
        self._event.clear()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        """Return once it is set."""
        await self._event.wait()


class Service(Protocol):
    """Something that runs by itself. `topics`: which signals wake it; `wake`: what else does."""

    name: str
    topics: tuple[Topic, ...] = ()
    wake: Wake
    sleeps: bool = False
    """True: nothing comes up between the times that its steps say, so it never looks."""
    by_writes: bool = False
    """True: what it looks for comes only with a write to the store, or at such a time."""
    rest_seconds: float = 0.0
    """Signals that come sooner after the beginning of a step than this are gathered, and wake it then: where requests
    signal one by one, they need not be looked for one by one."""

    def signalled(self) -> None:
        """A signal came, on one of the topics: called before the step that it wakes. For services that must tell a
        signal from the passing of time."""
        return

    def looks(self) -> bool:
        """Whether it is to be called at the next look of its node, once a second, though nothing woke it: for work that
        comes up without a wake-up, or whose signal may be lost. Asked at each look."""
        return not self.sleeps

    def at_writes(self) -> bool:
        """Whether what it looks for at present comes only with a write to the store, or at a time that its last step
        said: then it need not look where nothing was written."""
        return self.by_writes

    async def step(self, now: Instant) -> Instant | None:
        """Do the work due at `now`. The latest time for the next call (None: on a signal, a wake-up, or at a look)."""


class Paced(Service):
    """A service that does its work `every` so often, and at once where the wall clock went back."""

    sleeps = True
    every: Instant
    _next_at: Instant = 0

    async def step(self, now: Instant) -> Instant | None:
        if not self._next_at - self.every <= now < self._next_at:
            await self.work(now)
            self._next_at = now + self.every
        return self._next_at

    @abstractmethod
    async def work(self, now: Instant) -> None:
        """Do the work of one look."""


class _Ill(Struct):
    """A part that does not work, and the outage by which it began. `steady_seconds`: for how long it must work again
    before it counts as well."""

    reason: str
    outage: str
    steady_seconds: float = 0.0
    works_since: float | None = None


class _Well(Struct, frozen=True):
    """A part that works again, and how long it had to prove that."""

    since: float
    steady_seconds: float


class Health:
    """What keeps this node from working, by part; empty when all is well.

    A part that fails again soon after it worked again has to work without a failure for a while, longer each time: as
    with a full disk, where small writes succeed now and then."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ill: dict[str, _Ill] = {}
        self._well: dict[str, _Well] = {}
        self._outages: dict[str, set[str]] = {}

    def problems(self) -> dict[str, str]:
        """Part and reason, for /readyz."""
        return {part: ill.reason for part, ill in self._ill.items()}

    def is_ill(self, part: str) -> bool:
        """Whether a part does not count as well."""
        return part in self._ill

    def well(self, part: str) -> Sequence[str]:
        """Note that a part works. If that ends an outage, every part that it stopped; otherwise none."""
        ill = self._ill.get(part)
        if ill is None:
            return ()
        now = self._monotonic()
        if ill.works_since is None:
            ill.works_since = now
        if now - ill.works_since < ill.steady_seconds:
            return ()
        del self._ill[part]
        self._well[part] = _Well(now, ill.steady_seconds)
        if any(other.outage == ill.outage for other in self._ill.values()):
            return ()
        return sorted(self._outages.pop(ill.outage))

    def ill(self, part: str, reason: str, *, alone: bool = False) -> bool:
        """Note why a part does not work. Whether this is news: no other part met the same before. `alone`: a fault of
        this part's own, also where another part says the same."""
        if (ill := self._ill.get(part)) is not None:
            ill.reason, ill.works_since = reason, None
            return False
        outage = f"{part}: {reason}" if alone else reason
        self._ill[part] = _Ill(reason, outage, self._steady_seconds(self._well.pop(part, None)))
        is_news = outage not in self._outages
        self._outages.setdefault(outage, set()).add(part)
        return is_news

    def _steady_seconds(self, before: _Well | None) -> float:
        if before is None or self._monotonic() - before.since > ANEW_SECONDS:
            return 0.0
        return min(max(STEADY_SECONDS_MIN, 2 * before.steady_seconds), STEADY_SECONDS_MAX)


class Loop:
    """Calls one service until `stop`. Something calls `look` once a second."""

    def __init__(self, service: Service, clock: Clock, signal: Signal, health: Health) -> None:
        self.service = service
        self._clock = clock
        self._signal = signal
        self._health = health
        self._wake = service.wake
        self._halt = Wake()
        self._waiting = False
        self._writes: int | None = None
        self._left_out = 0
        self._stopping = False
        self._failures = 0
        self._rested_at = 0.0
        self._resting: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        """End after the present step."""
        self._stopping = True
        self._wake.set()
        self._halt.set()

    def look(self, *, stepped: bool = False) -> None:
        """A second has passed: step, if the service wants to look, or works again and has to prove it. `stepped`: the
        wall clock was, so what a step that is under way asks for may be wrong too."""
        if stepped or (self._waiting and self._wants_look()):
            self._wake.set()

    def _wants_look(self) -> bool:
        if self._health.is_ill(self.service.name):
            return True
        return self.service.looks() and not self._leaves_out()

    def _leaves_out(self) -> bool:
        """True if the store is unchanged since the last step began."""
        writes = self._signal.writes() if self.service.at_writes() else None
        self._left_out += 1
        return writes is not None and writes == self._writes and self._left_out <= LEFT_OUT_MAX

    async def run(self) -> None:
        """Step and wait, until stopped."""
        unsubscribe: list[Callable[[], None]] = [
            self._signal.subscribe(topic, self._signalled) for topic in self.service.topics
        ]
        try:
            while not self._stopping:
                self._wake.clear()
                await self._wait(await self._step())
        finally:
            for stop in unsubscribe:
                stop()
            if self._resting is not None:
                self._resting.cancel()

    def _signalled(self) -> None:
        self.service.signalled()
        loop = asyncio.get_running_loop()
        if loop.time() >= self._rested_at:
            self._wake.set()
        elif self._resting is None:
            self._resting = loop.call_at(self._rested_at, self._rested)

    def _rested(self) -> None:
        self._resting = None
        self._wake.set()

    async def _step(self) -> float | None:
        """One step. Seconds until the next; None: no time was said."""
        now = self._clock.now()
        self._writes, self._left_out = self._signal.writes(), 0
        self._rested_at = asyncio.get_running_loop().time() + self.service.rest_seconds
        try:
            due_at = await self.service.step(now)
        except Outage as outage:
            return self._ill(str(outage), expected=True)
        except Exception as error:
            return self._ill(f"{type(error).__name__}: {error}", expected=False)
        self._failures = 0
        if parts := self._health.well(self.service.name):
            log.info("works again: %s", ", ".join(parts))
        return None if due_at is None else max((due_at - self._clock.now()) / SECOND, 0.0)

    def _ill(self, reason: str, *, expected: bool) -> float:
        if self._health.ill(self.service.name, reason, alone=not expected):
            if expected:
                log.warning("%s can't work: %s; each part that meets this tries again", self.service.name, reason)
            else:
                log.exception("%s failed: %s; it tries again", self.service.name, reason)
        self._failures += 1
        pause = BACKOFF_SECONDS_MIN * 2.0 ** min(self._failures - 1, 16)
        return min(pause, BACKOFF_SECONDS_MAX)

    async def _wait(self, seconds: float | None) -> None:
        """Wait for the wake-up, at most `seconds`. After a failure, wake-ups do not shorten the pause."""
        if self._stopping:
            return
        if seconds is not None and seconds <= 0:
            await asyncio.sleep(0)
            return
        event = self._halt if self._failures else self._wake
        loop = asyncio.get_running_loop()
        timer = None if seconds is None else loop.call_later(min(seconds, WAIT_SECONDS_MAX), event.set)
        self._waiting = True
        try:
            await event.wait()
        finally:
            self._waiting = False
            if timer is not None:
                timer.cancel()
            self._halt.clear()


class Looks:
    """Once a second, at the same part of it (`at`), every loop of a node looks that has a reason to: together, so that
    an idle process wakes up once, and not once for each of them; and when the signal says that something was written to
    the store. Here a step of the wall clock is noticed, too, for all
    of them."""

    def __init__(self, loops: Sequence[Loop], clock: Clock, at: float = 0.0, signal: Signal | None = None) -> None:
        self._loops = tuple(loops)
        self._signal = signal
        self._clock = clock
        self._at = at
        self._offset: float | None = None

    async def run(self) -> None:
        """Look, until cancelled."""
        stop = self._signal.subscribe(WRITTEN, self.look) if self._signal else None
        try:
            self.look()
            while True:
                await asyncio.sleep(self.pause())
                self.look()
        finally:
            if stop is not None:
                stop()

    def pause(self) -> float:
        """Seconds until the next look."""
        pause = POLL_SECONDS - (asyncio.get_running_loop().time() - self._at) % POLL_SECONDS
        return pause if pause > EARLY_SECONDS else pause + POLL_SECONDS

    def look(self) -> None:
        """Look now."""
        stepped = self._stepped()
        for loop in self._loops:
            loop.look(stepped=stepped)

    def _stepped(self) -> bool:
        """Whether the wall clock and the clock by which loops wait have parted. (Small steps add up.)

        Not by the event loop's own reading: some loops keep the one from before the callbacks of a round.
        """
        offset = self._clock.now() / SECOND - self._clock.monotonic()
        before = offset if self._offset is None else self._offset
        if self._offset is not None and abs(offset - before) < STEPPED_SECONDS:
            return False
        self._offset = offset
        return offset != before
