"""Runs performed by Python functions of this process.

A handler is an async function, or a plain one that is called in a thread. It gets the run's context, and, where it has
more parameters, the run's args by name, converted to the types that it declares. Returning means success (what it
returns is kept as the result); raising means failure; `Retry`, `Discard` and `Defer` say more.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import msgspec

from horarium.clock import Clock, to_datetime, to_instant
from horarium.model import RESULT_BYTES_MAX, Deferred, Failed, HandlerTarget, Job, Outcome, Run, Succeeded
from horarium.ports import Control, Delivery

HandlerFunction = Callable[..., Any]

THREADS_MAX = 64

log = logging.getLogger("horarium")


class Retry(Exception):
    """Raise it in a handler: failed, try again, after `after` (a timedelta or seconds) if given, else by the policy."""

    def __init__(self, reason: str = "retry asked", *, after: timedelta | float | None = None) -> None:
        super().__init__(reason)
        self.after_seconds = after.total_seconds() if isinstance(after, timedelta) else after


class Discard(Exception):
    """Raise it in a handler: failed for good, whatever attempts are left."""


class Defer(Exception):
    """Raise it in a handler: not now; call again at `until` (an aware datetime). Costs no attempt."""

    def __init__(self, until: datetime, reason: str = "deferred by its handler") -> None:
        super().__init__(reason)
        self.until = to_instant(until)


class RunContext:
    """What a handler knows of the run that it performs."""

    __slots__ = ("_control", "_job", "_loop", "_run", "args")

    def __init__(self, run: Run, job: Job | None, args: Any, control: Control) -> None:
        self._run = run
        self._job = job
        self._control = control
        self._loop: asyncio.AbstractEventLoop | None = None
        self.args = args

    @property
    def id(self) -> str:
        """The run's id: the same for every attempt, so it serves as idempotency key."""
        return self._run.id

    @property
    def idempotency_key(self) -> str:
        """The run's id."""
        return self._run.id

    @property
    def job(self) -> str | None:
        """The name of its job; None for a one-off run."""
        return self._run.job

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self._run.attempt

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
        return to_datetime(self._run.due_at)

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of its job."""
        return self._job.labels if self._job is not None else {}

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that names the run."""
        return logging.LoggerAdapter(log, {"run": self._run.id, "job": self._run.job, "attempt": self._run.attempt})

    @property
    def cancelled(self) -> bool:
        """Whether a cancel was asked, or the lease was lost. A handler that runs for long looks now and then."""
        return self._control.cancelled

    async def wait_cancelled(self) -> None:
        """Return when `cancelled` becomes true."""
        await self._control.wait_cancelled()

    async def heartbeat(self, progress: Any = None) -> None:
        """Renew the lease (which also happens by itself) and keep `progress` with the run. Raises LeaseLost."""
        await self._control.heartbeat(None if progress is None else msgspec.json.encode(progress))

    def report_progress(self, progress: Any) -> None:
        """As `heartbeat`, for a handler that runs in a thread."""
        assert self._loop is not None, "only for handlers that run in a thread; use `await run.heartbeat(...)`"
        asyncio.run_coroutine_threadsafe(self.heartbeat(progress), self._loop).result()

    def __repr__(self) -> str:
        return f"<run {self.id} of {self.job or self._run.queue}, attempt {self.attempt}>"


class Handler:
    """A registered function, and how it is to be called."""

    __slots__ = ("function", "is_async", "name", "parameters")

    def __init__(self, name: str, function: HandlerFunction) -> None:
        self.name = name
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        self.parameters = _parameters(function)

    def call(self, context: RunContext) -> Any:
        """Call the function; for an async one, its coroutine."""
        if not self.parameters:
            return self.function(context)
        return self.function(context, **_arguments(self.parameters, context.args))


def _parameters(function: HandlerFunction) -> dict[str, Any]:
    """Parameters beyond the first, with the types that they declare."""
    signature = inspect.signature(function, eval_str=True)
    return {
        name: Any if parameter.annotation is parameter.empty else parameter.annotation
        for name, parameter in list(signature.parameters.items())[1:]
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }


def _arguments(parameters: Mapping[str, Any], args: Any) -> dict[str, Any]:
    given = args if isinstance(args, dict) else {}
    return {name: msgspec.convert(given[name], kind) for name, kind in parameters.items() if name in given}


class HandlerDelivery:
    """The Target of all handlers of this process."""

    def __init__(self, handlers: Mapping[str, Handler], clock: Clock) -> None:
        self._handlers = handlers
        self._clock = clock
        self._threads: ThreadPoolExecutor | None = None

    async def deliver(self, delivery: Delivery, control: Control) -> Outcome | None:
        run, job = delivery.run, delivery.job
        handler = self._handlers.get(run.queue.removeprefix("handler/"))
        if handler is None:
            return Failed(f"there is no handler for {run.queue!r} in this process")
        try:
            context = RunContext(run, job, args_of(run, job), control)
            answer = await handler.call(context) if handler.is_async else await self._in_thread(handler, context)
            return _succeeded(answer)
        except Exception as error:
            return _failed(error, self._clock)

    async def _in_thread(self, handler: Handler, context: RunContext) -> Any:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="horarium-handler")
        loop = asyncio.get_running_loop()
        context._loop = loop
        answer = await loop.run_in_executor(self._threads, handler.call, context)
        return await answer if isinstance(answer, Awaitable) else answer

    async def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


_NO_RESULT = Succeeded()


def _succeeded(answer: Any) -> Outcome:
    if answer is None:
        return _NO_RESULT
    try:
        result = msgspec.json.encode(answer)
        result.decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return Failed(f"its result can't be written as JSON: {error}", retryable=False)
    if len(result) > RESULT_BYTES_MAX:
        kept = result[: RESULT_BYTES_MAX // 4].decode(errors="replace")
        result = msgspec.json.encode({"truncated": True, "bytes": len(result), "begins": kept})
    return Succeeded(result)


def _failed(error: Exception, clock: Clock) -> Outcome:
    match error:
        case Retry():
            return Failed(str(error), retry_after_seconds=error.after_seconds)
        case Discard():
            return Failed(str(error) or "discarded by its handler", retryable=False)
        case Defer():
            return Deferred(error.until, str(error))
        case _:
            return Failed(describe(error))


def describe(error: BaseException) -> str:
    """The error in one line, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" (at {frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def args_of(run: Run, job: Job | None) -> Any:
    """The args in force: those given with the run, or those of its job."""
    if run.payload is not None:
        return msgspec.json.decode(run.payload)
    if job is not None and isinstance(job.target, HandlerTarget):
        return job.target.args
    return {}
