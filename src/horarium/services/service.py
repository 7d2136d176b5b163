"""The only loop. A service is `step(now) -> the instant at which it wants to be called again`; waiting, wake-up,
back-off and stop are here, once.

A step that meets an outage is called again after a growing pause, which is logged once, not at every try. A step that
fails in any other way is a bug: it is logged, and the loop goes on. The wait is never longer than `POLL_SECONDS`,
so that a dropped signal or a wall clock that was stepped costs at most a second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from horarium.clock import SECOND, Clock, Instant
from horarium.errors import Outage
from horarium.ports import Signal, Topic

POLL_SECONDS = 1.0
EARLY_SECONDS = 0.02
"""A timer may go off this much before its time."""
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
        """What was set so far is being dealt with."""
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
    topics: tuple[Topic, ...]
    wake: Wake

    def signalled(self) -> None:
        """A signal came, on one of the topics: called before the step that it wakes. For services that must tell a
        signal from the passing of time."""
        return

    async def step(self, now: Instant) -> Instant | None:
        """Do what is due at `now`. The latest time for the next call (None: on a signal, or after `POLL_SECONDS`)."""


class _Ill(Struct):
    """A part that does not work. `steady_seconds`: for how long it must work again before it counts as well."""

    reason: str
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

    def problems(self) -> dict[str, str]:
        """Part and reason, for /readyz."""
        return {part: ill.reason for part, ill in self._ill.items()}

    def well(self, part: str) -> bool:
        """Note that a part works. Whether it is well from now on, and was not before."""
        ill = self._ill.get(part)
        if ill is None:
            return False
        now = self._monotonic()
        if ill.works_since is None:
            ill.works_since = now
        if now - ill.works_since < ill.steady_seconds:
            return False
        del self._ill[part]
        self._well[part] = _Well(now, ill.steady_seconds)
        return True

    def ill(self, part: str, reason: str) -> bool:
        """Note why a part does not work. Whether this is news."""
        if (ill := self._ill.get(part)) is not None:
            ill.reason, ill.works_since = reason, None
            return False
        self._ill[part] = _Ill(reason, self._steady_seconds(self._well.pop(part, None)))
        return True

    def _steady_seconds(self, before: _Well | None) -> float:
        if before is None or self._monotonic() - before.since > ANEW_SECONDS:
            return 0.0
        return min(max(STEADY_SECONDS_MIN, 2 * before.steady_seconds), STEADY_SECONDS_MAX)


class Loop:
    """Calls one service until `stop`. `looks_at`: at which part of a second it looks without a reason."""

    def __init__(self, service: Service, clock: Clock, signal: Signal, health: Health, looks_at: float = 0.0) -> None:
        self.service = service
        self._looks_at = looks_at
        self._clock = clock
        self._signal = signal
        self._health = health
        self._wake = service.wake
        self._halt = Wake()
        self._stopping = False
        self._failures = 0

    def stop(self) -> None:
        """End after the present step."""
        self._stopping = True
        self._wake.set()
        self._halt.set()

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

    def _signalled(self) -> None:
        self.service.signalled()
        self._wake.set()

    async def _step(self) -> float:
        """One step. Seconds until the next."""
        now = self._clock.now()
        try:
            due_at = await self.service.step(now)
        except Outage as outage:
            return self._ill(str(outage), expected=True)
        except Exception as error:
            return self._ill(f"{type(error).__name__}: {error}", expected=False)
        self._failures = 0
        if self._health.well(self.service.name):
            log.info("%s works again", self.service.name)
        pause = POLL_SECONDS if due_at is None else max((due_at - self._clock.now()) / SECOND, 0.0)
        return min(pause, self._until_look()) if pause >= POLL_SECONDS else pause

    def _until_look(self) -> float:
        """Seconds until all loops of this node look again: together, so that an idle process wakes up once a second,
        and not once for each of them."""
        pause = POLL_SECONDS - (asyncio.get_running_loop().time() - self._looks_at) % POLL_SECONDS
        return pause if pause > EARLY_SECONDS else pause + POLL_SECONDS

    def _ill(self, reason: str, *, expected: bool) -> float:
        if self._health.ill(self.service.name, reason):
            if expected:
                log.warning("%s can't work: %s; it tries again", self.service.name, reason)
            else:
                log.exception("%s failed: %s; it tries again", self.service.name, reason)
        self._failures += 1
        pause = BACKOFF_SECONDS_MIN * 2.0 ** min(self._failures - 1, 16)
        return min(pause, BACKOFF_SECONDS_MAX)

    async def _wait(self, seconds: float) -> None:
        """Wait for the wake-up, at most `seconds`. After a failure, wake-ups do not shorten the pause."""
        if self._stopping:
            return
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        event = self._halt if self._failures else self._wake
        timer = asyncio.get_running_loop().call_later(seconds, event.set)
        try:
            await event.wait()
        finally:
            timer.cancel()
            self._halt.clear()
