"""Virtual time: an event loop that never waits, and the clocks that it moves.

The loop runs callbacks exactly as asyncio does. Where asyncio would sleep, it moves the time on instead, so that
minutes pass in milliseconds and the order of events depends on nothing but the program and its seed. It has no sockets,
no threads and no signals, and must never get any.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, TypeVar

from horarium.clock import SECOND, Instant

T = TypeVar("T")

TURNS_MAX = 100_000
"""Turns of the loop at one instant, after which something asks for the next one again and again."""


class Time:
    """The one time of a simulated world: `elapsed` never goes back, the wall clock is that plus an offset."""

    def __init__(self, start: Instant) -> None:
        self.start = start
        self.elapsed = 0
        self.offset = start

    @property
    def wall(self) -> Instant:
        return self.elapsed + self.offset

    async def passes(self, seconds: float) -> None:
        """Wait for seconds of this world, which take none of a real clock."""
        await asyncio.sleep(seconds)


class NodeClock:
    """A node's own view of the time: as the world's, give or take its skew."""

    def __init__(self, time: Time, skew: int = 0) -> None:
        self._time = time
        self._skew = skew
        self.steady_offset = self.now() - time.elapsed
        self.machine = f"skewed by {skew}"

    def now(self) -> Instant:
        return self._time.wall + self._skew

    def monotonic(self) -> float:
        return self._time.elapsed / SECOND

    def steady(self) -> Instant:
        return self._time.elapsed + self.steady_offset


class VirtualLoop(asyncio.BaseEventLoop):
    """An asyncio loop in virtual time. `task_made` is called with every task, `fail` if something is busy while no time
    passes: on a real clock it would use up a core. `early`: how many microseconds before its time a timer may go off;
    with half of one, what is due at a full microsecond is done in it, however times were rounded."""

    def __init__(
        self,
        time: Time,
        task_made: Callable[[asyncio.Task[Any], Any], None],
        fail: Callable[[str], None],
        early: float = 0.0,
    ) -> None:
        super().__init__()
        self._early = early
        if early:
            self._clock_resolution = 2 * early / SECOND
        self._virtual = time
        self._fail = fail
        self._turns = 0
        self._selector = self
        self._task_made = task_made
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        return self._virtual.elapsed / SECOND

    def select(self, timeout: float | None) -> list[Any]:
        """What asyncio calls to wait: time passes, nothing is waited for."""
        if timeout is None:
            raise RuntimeError("the simulated world has stopped: nothing is scheduled any more")
        self._turns += 1
        if timeout <= 0 and self._turns > TURNS_MAX:
            self._fail(f"no time passed in {TURNS_MAX:,} turns of the event loop")
            timeout = 1.0
        if timeout > 0:
            self._turns = 0
            self._virtual.elapsed += max(1, math.ceil(timeout * SECOND - self._early))
        return []

    def _process_events(self, events: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """No call comes from another thread."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Done at once, so that every world is the same each time."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, context: Any = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, context=context)
        self._task_made(task, context)
        return task
