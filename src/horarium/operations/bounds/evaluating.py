"""Rules evaluated for those who ask, so that no request and no rule holds up the scheduler.

What costs next to nothing is answered at once, on the event loop. What costs more is done in a thread, one at a time,
which works for a millisecond and then rests four times as long: so all questions together take a fifth of the
interpreter at most, a millisecond at a time, and ordinary questions never wait behind expensive ones.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from contextvars import copy_context
from threading import get_ident
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from horarium.errors import TooExpensive
from horarium.triggers.budget import FIRST_STEPS, limited

WORK_SECONDS = 0.001
"""For how long a thread evaluates without a rest, in time of the processor."""
REST = 4.0
"""How long it rests then, as a multiple of what it worked."""
WAITING_MAX = 500
"""Questions that wait for their turn; more are refused."""

T = TypeVar("T")


class Pace:
    """Rests of one evaluation in a thread; on the event loop itself it does nothing."""

    def __init__(self) -> None:
        self.abandoned = False
        self._loop_thread = get_ident()
        self._began = 0.0

    def begin(self) -> None:
        self._began = time.thread_time()

    def __call__(self) -> None:
        """Called at each step. Raises TooExpensive once the caller has given up."""
        worked = time.thread_time() - self._began
        if worked < WORK_SECONDS or get_ident() == self._loop_thread:
            return
        if self.abandoned:
            raise TooExpensive("the caller of this evaluation has given up", field="trigger")
        time.sleep(REST * worked)
        self._began = time.thread_time()


class Evaluator:
    """The questions of one kind in a process, for each event loop in turn."""

    def __init__(self) -> None:
        self._turns: WeakKeyDictionary[AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._waiting = 0

    async def __call__(self, ask: Callable[[], T], steps: int) -> T:
        """What `ask` returns, within a number of steps. Raises TooExpensive beyond. It may be called twice, so it must
        do nothing but ask."""
        try:
            with limited(min(FIRST_STEPS, steps)) as budget:
                answer = ask()
        except TooExpensive:
            if steps <= FIRST_STEPS:
                raise
        else:
            if budget.left >= 0:
                return answer
        return await self._in_turn(ask, steps)

    async def _in_turn(self, ask: Callable[[], T], steps: int) -> T:
        if self._waiting >= WAITING_MAX:
            raise TooExpensive("too many rules that are expensive to evaluate were asked for at once", field="trigger")
        turn = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        self._waiting += 1
        try:
            await turn.acquire()
        finally:
            self._waiting -= 1
        try:
            pace = Pace()
            working = asyncio.get_running_loop().run_in_executor(None, copy_context().run, _evaluated, ask, steps, pace)
        except BaseException:
            turn.release()
            raise
        working.add_done_callback(lambda done: _ended(done, turn))
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            pace.abandoned = True
            raise


def _evaluated(ask: Callable[[], T], steps: int, pace: Pace) -> T:
    pace.begin()
    try:
        with limited(steps, pace):
            return ask()
    finally:
        if not pace.abandoned:
            pace()


def _ended(done: Future[T], turn: asyncio.Lock) -> None:
    """Others have their turn once the thread is done, also if the caller has given up."""
    turn.release()
    if not done.cancelled():
        done.exception()


async def in_thread(work: Callable[..., T], *given: Any) -> T:
    """What `work` returns, in a thread. One at a time, since the event loop waits for the interpreter in turn with all
    threads that want it."""
    async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        return await asyncio.to_thread(work, *given)


_turns: WeakKeyDictionary[AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

evaluate = Evaluator()
"""Questions of people and programs."""

__all__ = ["Evaluator", "evaluate", "in_thread"]
