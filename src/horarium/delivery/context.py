"""A handler's view of its run, and its actions: the same object, with the same names, for an async handler and for a
plain one, which is called in a thread.

    async def export(run):                    def compress(run):
        await run.progress({"done": 3})           run.progress({"done": 3})
        await run.cancelled.wait(5)               run.cancelled.wait(5)

Calls that have to wait are awaited in an async handler; in a thread the call itself blocks.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec

from horarium.clock import to_datetime, to_micros
from horarium.delivery.arguments import json_of
from horarium.delivery.saying import RunLog
from horarium.errors import InvalidRequest, LeaseLost
from horarium.model import RESULT_BYTES_MAX, HandlerTarget, Job, Run, own_labels
from horarium.ports import Control, RunLogs
from horarium.rules.tracing import handed_on


class Done:
    """The answer of a call in a thread, where it has been done when it returns: may be awaited, need not be."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


class CancelledEvent:
    """Set once a cancel was asked, the time limit passed, the lease was lost, or the node ends the run. True when set,
    so that `while not run.cancelled:` reads as it should."""

    __slots__ = ("_context",)

    def __init__(self, context: RunContext) -> None:
        self._context = context

    def is_set(self) -> bool:
        """Whether the handler should stop."""
        return self._context._note(self._context._control.cancelled)

    __bool__ = is_set

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until it is set, at most `timeout` seconds: whether it is. In an async handler: `await` it."""
        thread = self._context._thread
        return self._wait(timeout) if thread is None else self._context._note(thread.wait_cancelled(timeout))

    async def _wait(self, timeout: float | None) -> bool:
        context = self._context
        if context._at_cancel is None:
            context._at_cancel = asyncio.Event()
            context._control.when_cancelled(context._at_cancel.set)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await context._at_cancel.wait()
        return self.is_set()

    def __repr__(self) -> str:
        return f"<cancelled: {self._context._control.cancelled}>"


class InThread:
    """The way from a handler's thread to the event loop."""

    __slots__ = ("_asked", "_control", "_is_watched", "_loop")

    def __init__(self, control: Control, loop: asyncio.AbstractEventLoop) -> None:
        self._control = control
        self._loop = loop
        self._asked = threading.Event()
        self._is_watched = False

    def call(self, work: Coroutine[Any, Any, None]) -> None:
        """Have it done on the event loop, and wait for it. Raises LeaseLost once there is no event loop any more."""
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise LeaseLost("this process does not run the scheduler any more; stop working on the run") from None
        future.result()

    def wait_cancelled(self, timeout: float | None) -> bool:
        """In the thread: wait for the cancel."""
        if self._control.cancelled:
            return True
        if not self._is_watched:
            try:
                self._loop.call_soon_threadsafe(self._control.when_cancelled, self.wake)
            except RuntimeError:
                return True  # there is no event loop any more: it will not be set again
            self._is_watched = True
        self._asked.wait(timeout)
        return self._control.cancelled

    def wake(self) -> None:
        """On the event loop: the handler is to stop, let it see."""
        self._asked.set()


class RunContext:
    """A run, as its handler sees it."""

    __slots__ = (
        "_args",
        "_at_cancel",
        "_control",
        "_ended",
        "_ends",
        "_error",
        "_job",
        "_logs",
        "_run",
        "_saw_cancel",
        "_spoke",
        "_thread",
    )

    def __init__(
        self, run: Run, job: Job | None, control: Control, logs: RunLogs, thread: InThread | None = None
    ) -> None:
        self._run = run
        self._job = job
        self._control = control
        self._logs = logs
        self._thread = thread
        self._saw_cancel = False
        self._spoke = False
        self._error: BaseException | None = None
        self._ended = False
        self._ends: Callable[[], None] | None = None
        self._args: Any = msgspec.UNSET
        self._at_cancel: asyncio.Event | None = None

    @property
    def id(self) -> str:
        """The run's id: the same for every attempt, so it serves as idempotency key."""
        return self._run.id

    @property
    def idempotency_key(self) -> str:
        """The run's id."""
        return self._run.id

    @property
    def handler(self) -> str:
        """The name of the handler."""
        return self._run.queue.removeprefix("handler/")

    @property
    def job(self) -> str | None:
        """The name of its job; None for a one-off run."""
        return self._run.job

    @property
    def args(self) -> Any:
        """The args as they were given, before any conversion to the handler's types: usually a dict."""
        if self._args is msgspec.UNSET:
            self._args = args_of(self._run, self._job)
        return self._args

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self._run.attempt

    @property
    def traceparent(self) -> str | None:
        """The trace to which this attempt belongs, as W3C Trace Context writes it; None: it belongs to none."""
        return handed_on(self._run)

    @property
    def token(self) -> int:
        """The fencing number of this claim: larger than that of any earlier one."""
        return self._run.token

    @property
    def fire_at(self) -> datetime:
        """The fire time for which the run is owed."""
        return to_datetime(self._run.fire_at)

    @property
    def due_at(self) -> datetime:
        """When this attempt was due."""
        return to_datetime(self._run.due_since)

    @property
    def deadline(self) -> datetime | None:
        """When this attempt must be over; None: it has no time limit."""
        run = self._run
        if run.execution_seconds is None or run.started_at is None:
            return None
        return to_datetime(run.started_at + to_micros(run.execution_seconds))

    @property
    def labels(self) -> Mapping[str, str]:
        """Those of its job, or its own if it has none."""
        return self._job.labels if self._job is not None else own_labels(self._run)

    @property
    def cancelled(self) -> CancelledEvent:
        """Set when the handler should stop: `if run.cancelled`, `run.cancelled.wait(seconds)`."""
        return CancelledEvent(self)

    def _note(self, cancelled: bool) -> bool:
        """Remember that the handler has seen that it should stop."""
        if cancelled:
            self._saw_cancel = True
        return cancelled

    @property
    def log(self) -> RunLog:
        """Its lines go to the run's log, where all can read it at once: `run.log("half of it")`. It is a logger too,
        `horarium.handler`, whose lines name the run; records have `run`, `job`, `attempt`, `handler`."""
        named = {"run": self.id, "job": self.job, "attempt": self.attempt, "handler": self.handler}
        return RunLog(named, self._keep)

    def _keep(self, stream: str, text: str) -> None:
        self._spoke = True
        self._logs.add(self._run, stream, text)

    def _may_end(self, end: Callable[[], None]) -> None:
        """In the thread: this ends the work that is about to begin."""
        self._ends = end
        if self._ended:
            end()

    def _end(self) -> None:
        """On the event loop: end work that can be ended from outside."""
        self._ended = True
        if self._ends is not None:
            self._ends()

    def progress(self, progress: Any) -> Awaitable[None]:
        """Keep `progress` (anything that JSON can hold) with the run, where all can see it, and renew the lease.
        `await` it in an async handler. Raises LeaseLost: then stop, nothing that this attempt does counts any more."""
        return self.heartbeat(progress)

    def heartbeat(self, progress: Any = None) -> Awaitable[None]:
        """Renew the lease now (it is renewed by itself), and so learn whether it is still held. `await` it in an
        async handler. Raises LeaseLost."""
        beat = self._control.heartbeat(None if progress is None else _encoded(progress))
        if self._thread is None:
            return beat
        self._thread.call(beat)
        return Done()

    def __repr__(self) -> str:
        return f"<run {self.id} of {self.job or self._run.queue}, attempt {self.attempt}>"


def _encoded(progress: Any) -> bytes:
    try:
        text = json_of(progress, "progress")
    except ValueError as error:
        raise InvalidRequest(f"progress: {error}", field="progress") from None
    if len(text) > RESULT_BYTES_MAX:
        raise InvalidRequest(f"progress: {len(text):,} bytes; at most {RESULT_BYTES_MAX:,} are kept", field="progress")
    return text


def args_of(run: Run, job: Job | None) -> Any:
    """The args in force: those given with the run, or those of its job."""
    if run.payload is not None:
        return msgspec.json.decode(run.payload)
    return job_args(job)


def job_args(job: Job | None) -> Any:
    """The args that a job gives to its handler."""
    return job.target.args if job is not None and isinstance(job.target, HandlerTarget) else {}
