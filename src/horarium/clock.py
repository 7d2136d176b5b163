"""Time as Horarium counts it, and the one place that reads a clock.

An `Instant` is a whole number of microseconds since 1970-01-01T00:00:00Z. Inside, all arithmetic is on these integers:
they compare fast, every store can keep them exactly, and none of them has a zone. `datetime` appears only at the
edges. Durations between two readings on one machine come from `monotonic`, never from the wall clock.

Two scales: fire times, due times and all that people read are wall time. Leases and time limits are on the *steady*
scale, which all nodes of a store share (`services.loop.steady`), and which no jump of a wall clock touches.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol

Instant = int
"""Microseconds since the Unix epoch, UTC."""

MICROSECOND = 1
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

INSTANT_MIN: Instant = 0
INSTANT_MAX: Instant = 7_289_654_400 * SECOND
"""1970-01-01 and 2201-01-01: no fire time lies outside."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)


def to_instant(moment: datetime) -> Instant:
    """The instant of an aware datetime. Raises ValueError for a naive one, which has none."""
    if not isinstance(moment, datetime):
        raise ValueError(f"{moment!r:.80} is no datetime; give an aware one, e.g. datetime(2030, 1, 1, tzinfo=UTC)")
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone; give an aware datetime, e.g. with tzinfo=UTC")
    return (moment - _EPOCH) // _TICK


@lru_cache(maxsize=1024)
def to_datetime(instant: Instant) -> datetime:
    """The aware UTC datetime of an instant. (A view of one run names the same few instants again and again.)"""
    return _EPOCH + timedelta(microseconds=instant)


def moment(instant: Instant | None) -> datetime | None:
    """An instant, or the lack of one, as a datetime."""
    return None if instant is None else to_datetime(instant)


def to_text(instant: Instant) -> str:
    """RFC 3339 in UTC with `Z`; microseconds only where there are any."""
    seconds, micros = divmod(instant, SECOND)
    return f"{_second_text(seconds)}.{micros:06d}Z" if micros else f"{_second_text(seconds)}Z"


@lru_cache(maxsize=512)
def _second_text(seconds: int) -> str:
    return to_datetime(seconds * SECOND).isoformat().removesuffix("+00:00")


def to_micros(seconds: float) -> int:
    """A duration in seconds as whole microseconds."""
    return round(seconds * SECOND)


class Clock(Protocol):
    """Where time comes from. Passed in; nothing else reads it."""

    def now(self) -> Instant:
        """The wall clock, in UTC. It may step, either way."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, from an arbitrary start. For durations and waits."""
        ...

    def steady(self) -> Instant:
        """The present on the steady scale: microseconds that never go back and that no jump of the wall clock changes,
        near wall time where that never jumped. For leases and time limits."""
        ...

    @property
    def machine(self) -> str:
        """Whose count of time that is: the same for all processes of a machine, until it is started again."""
        ...

    @property
    def steady_offset(self) -> int:
        """How far the steady scale is ahead of that count, in microseconds."""
        ...

    @steady_offset.setter
    def steady_offset(self, micros: int) -> None: ...


def to_wall(clock: Clock, steady: Instant) -> Instant:
    """The wall time of an instant of the steady scale, as seen from now: for people, and for those outside."""
    return clock.now() + steady - clock.steady()


_BOOT = getattr(time, "CLOCK_BOOTTIME", None)
"""It goes on while the machine sleeps, and is one for all its processes. (Linux alone has it.)"""


_nanos_since_boot = time.monotonic_ns if _BOOT is None else partial(time.clock_gettime_ns, _BOOT)


def _boot_id() -> str:
    """Of this start of the machine. Where that can't be known, processes do not count alike."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"process {os.getpid()} {time.time_ns()}"


class SystemClock:
    """The machine's own clocks."""

    monotonic = staticmethod(time.monotonic)

    machine = _boot_id()

    def __init__(self) -> None:
        self.steady_offset = self.now() - _nanos_since_boot() // 1000

    def now(self) -> Instant:
        return time.time_ns() // 1000

    def steady(self) -> Instant:
        return _nanos_since_boot() // 1000 + self.steady_offset
