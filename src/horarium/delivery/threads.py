"""Threads for work that blocks: one for each call that is under way, and none that waits for another.

The standard pool is not used for three reasons. Its calls queue when all threads are busy, while their time limits run.
The interpreter waits at its end for every thread of it, so that one stuck call keeps a process from ever stopping. And
an exception such as StopIteration never reaches the future that waits for it.

How many calls are under way is up to the caller (the dispatcher: places). An idle thread is used again, and ends after
a while.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")

IDLE_SECONDS = 30.0


class Call(Generic[T]):
    """One call in a thread. `answer` is set on the event loop; it may be cancelled, which the thread does not notice.
    `over` is the same, but is set even if `answer` was cancelled."""

    __slots__ = ("_context", "_function", "_loop", "_over", "answer")

    def __init__(self, function: Callable[[], T], loop: asyncio.AbstractEventLoop) -> None:
        self._function = function
        self._context: Context = copy_context()
        self._loop = loop
        self._over: asyncio.Future[T] | None = None
        self.answer: asyncio.Future[T] = loop.create_future()

    @property
    def over(self) -> asyncio.Future[T]:
        """Done once the thread is. To be read on the event loop, after `answer` or the task that awaits it was
        cancelled: then the answer may have come at that very moment."""
        if self._over is None:
            come = self.answer.done() and not self.answer.cancelled()
            self._over = self.answer if come else self._loop.create_future()
        return self._over

    def perform(self) -> None:
        """In the thread."""
        answer: Any = None
        error: BaseException | None = None
        try:
            answer = self._context.run(self._function)
        except BaseException as raised:  # of any kind: the waiting task must get it
            error = RuntimeError("StopIteration was raised") if isinstance(raised, StopIteration) else raised
        with suppress(RuntimeError):  # the event loop is closed: no task waits
            self._loop.call_soon_threadsafe(self._tell, answer, error)

    def _tell(self, answer: Any, error: BaseException | None) -> None:
        future = self.answer if self._over is None else self._over
        if future.done():
            self._over = future = self._loop.create_future()
        if error is None:
            future.set_result(answer)
        else:
            future.set_exception(error)


class Threads:
    """Daemon threads, made as they are needed."""

    def __init__(self, name: str, idle_seconds: float = IDLE_SECONDS) -> None:
        self._name = name
        self._idle_seconds = idle_seconds
        self._todo: SimpleQueue[Call[Any] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._made = 0
        self._alive = 0

    @property
    def alive(self) -> int:
        """How many there are, busy and idle."""
        return self._alive

    @property
    def busy(self) -> int:
        """How many of them are at work."""
        return self._alive - self._idle

    def call(self, function: Callable[[], T]) -> Call[T]:
        """Have it called at once, in a copy of the present context. To be used on the event loop. Raises RuntimeError
        where the system has no thread left; it is not called then."""
        call = Call(function, asyncio.get_running_loop())
        with self._lock:
            reused = self._idle > 0
            if reused:
                self._idle -= 1
        if reused:
            self._todo.put(call)
        else:
            self._start(call)
        return call

    def _start(self, call: Call[Any]) -> None:
        self._made += 1
        with self._lock:
            self._alive += 1
        try:
            threading.Thread(target=self._work, args=(call,), name=f"{self._name}-{self._made}", daemon=True).start()
        except BaseException:
            with self._lock:
                self._alive -= 1
            raise

    def close(self) -> None:
        """Let idle threads end; busy ones end after their call."""
        with self._lock:
            self._idle_seconds = 0.0
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._todo.put(None)

    def _work(self, call: Call[Any] | None) -> None:
        """Perform this call, then those that come, until none has come for a while."""
        while call is not None:
            call.perform()
            call = None
            with self._lock:
                if self._idle_seconds == 0.0:
                    break
                self._idle += 1
            call = self._next()
        with self._lock:
            self._alive -= 1

    def _next(self) -> Call[Any] | None:
        """The next call; None: it is time to end. `_idle` counts the threads that wait and are promised to no call: one
        that finds nothing may end only while it is among them."""
        while True:
            try:
                return self._todo.get(timeout=self._idle_seconds)
            except Empty:
                with self._lock:
                    if self._idle > 0:
                        self._idle -= 1
                        return None
