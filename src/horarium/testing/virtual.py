"""Virtual time on a real event loop: while it is held, time passes only when it is moved, and then without waiting.

The loop runs callbacks, sockets and threads as it always does. Where it would sleep until its next timer, the time is
moved on to that timer instead, up to the instant that was asked for. Work that no timer ends (a thread, an answer from
a socket) is waited for, for real. While no move is asked for, the loop waits as ever, and the time is as far on
afterwards as it has waited.

Timers of before are laid aside meanwhile: a time limit around a test knows nothing of the days that pass in it.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import threading
from collections.abc import Callable
from typing import Any

from horarium.clock import SECOND
from horarium.errors import InvalidRequest
from horarium.testing.clock import ManualClock

THREAD_POLL_SECONDS = 0.005
"""How often a thread at work is looked after."""
ANSWER_SECONDS = 0.5
"""How long work that has no timer is given before time passes beside it."""
TURN_SECONDS = 1e-12
"""How much later it is for the loop after a turn without a rest. asyncio calls a timer up to a nanosecond early; code
that then waits for the rest of its time would do so for ever if no time at all passed."""
QUIET = ("MainThread", "horarium", "asyncio_", "Dummy-")
"""How the names of threads begin that have nothing to tell the event loop unless a handler is in them."""


class VirtualTime:
    """Holds the running event loop from `hold` to `release`. `clock` moves with it. `busy`: whether a thread is at work
    that will tell the loop. `occupied`: whether a run is under way. `moved` is called after each move: it says how many
    seconds the next one may have at most (None: any)."""

    def __init__(
        self,
        clock: ManualClock,
        busy: Callable[[], bool],
        occupied: Callable[[], bool],
        moved: Callable[[], float | None],
    ) -> None:
        self.clock = clock
        self._busy = busy
        self._occupied = occupied
        self._moved = moved
        loop: Any = asyncio.get_running_loop()
        if not isinstance(loop, asyncio.BaseEventLoop) or not hasattr(loop, "_selector"):
            kind = type(loop).__name__
            raise InvalidRequest(
                f"travel: it needs an event loop of asyncio's own, not {kind}; leave uvloop out of tests"
            )
        if isinstance(loop._selector, VirtualTime):
            raise InvalidRequest("travel: another scheduler travels on this event loop; one at a time does")
        self._loop: Any = loop
        self._selector: Any = self._loop._selector
        self._before: list[Any] = []
        self._offset = 0.0
        self._turns = 0
        self._until: float | None = None
        self._over: asyncio.Future[None] | None = None
        self._patience = ANSWER_SECONDS
        self._executing = 0
        self._step_max: float | None = None

    # ---- holding the loop

    def hold(self) -> None:
        """From now on the loop's time is ours."""
        loop = self._loop
        self._offset = loop.time() - self.clock.monotonic()
        self._before, loop._scheduled = loop._scheduled, []
        loop.time = self._time
        loop.run_in_executor = self._in_executor
        loop._selector = self

    def release(self) -> None:
        """The loop has its own time again; what waits for a timer still waits for as long as it would have."""
        loop = self._loop
        late = loop.time()
        del loop.time, loop.run_in_executor
        loop._selector = self._selector
        for handle in loop._scheduled:
            handle._when += loop.time() - late
        loop._scheduled = [*self._before, *loop._scheduled]
        heapq.heapify(loop._scheduled)
        loop._timer_cancelled_count = sum(handle._cancelled for handle in loop._scheduled)

    async def move(self, seconds: float) -> None:
        """Let this time pass. Returns when all that falls due until then, and at the end of it, has been done or
        waits for a later time."""
        self._until = self.clock.monotonic() + seconds
        self._patience = ANSWER_SECONDS
        self._over = self._loop.create_future()
        try:
            await self._over
        finally:
            self._over = self._until = None

    def let_pass(self, seconds: float) -> None:
        """For the end: this time may pass whenever nothing else is to be done, and no thread is waited for."""
        self._until = self.clock.monotonic() + seconds
        self._busy = self._occupied = lambda: False

    def _time(self) -> float:
        return self.clock.monotonic() + self._offset + self._turns * TURN_SECONDS

    def _in_executor(self, executor: Any, function: Any, *args: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = type(self._loop).run_in_executor(self._loop, executor, function, *args)
        self._executing += 1
        future.add_done_callback(self._executed)
        return future

    def _executed(self, future: asyncio.Future[Any]) -> None:
        self._executing -= 1

    # ---- in place of the loop's selector

    def __getattr__(self, name: str) -> Any:
        return getattr(self._selector, name)

    def select(self, timeout: float | None = None) -> list[Any]:
        """What asyncio calls to wait. It has nothing else to do if it has to (`timeout` is not 0)."""
        events: list[Any] = self._selector.select(0)
        if events or (timeout is not None and timeout <= 0):
            self._patience = ANSWER_SECONDS if events else self._patience
            self._turns += 1
            return events
        if self._executing or self._busy():
            return list(self._selector.select(THREAD_POLL_SECONDS))
        if self._until is None:
            return self._wait(timeout)
        if self._patience > 0 and self._occupied() and self._others():
            self._patience -= THREAD_POLL_SECONDS
            return list(self._selector.select(THREAD_POLL_SECONDS))
        self._move(timeout, self._until)
        return []

    def _wait(self, timeout: float | None) -> list[Any]:
        """The test itself waits for something."""
        events = list(self._selector.select(timeout))
        if not events and timeout is not None:
            self._pass(timeout)
        return events

    def _others(self) -> bool:
        """Whether something beside the loop may have an answer for it: a socket, or a thread of a library."""
        threads = (thread.name for thread in threading.enumerate())
        return len(self._selector.get_map()) > 1 or not all(name.startswith(QUIET) for name in threads)

    def _move(self, timeout: float | None, until: float) -> None:
        left = until - self.clock.monotonic()
        if left <= 0:
            if self._over is not None and not self._over.done():
                self._over.set_result(None)
            self._until = None
            return
        steps = (step for step in (timeout, left, self._step_max) if step is not None)
        self._pass(min(steps))
        self._step_max = self._moved()

    def _pass(self, seconds: float) -> None:
        self.clock.advance(max(1, math.ceil(seconds * SECOND - 0.5)) / SECOND)
