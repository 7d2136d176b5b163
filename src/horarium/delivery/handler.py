"""Runs performed by Python functions of this process.

A handler is an async function, or a plain one that is called in a thread. It gets the run's context (`context.py`),
and, where it has more parameters, the run's args by name (`arguments.py`). Returning means success (what it returns is
kept as the result), unless it has seen `run.cancelled`: then it has stopped. Raising means failure; `Retry`, `Discard`
and `Defer` say more.

The hard part is a thread, which can't be stopped. When its attempt is over before it is (time limit, lost lease, end of
the node), it sees `run.cancelled` and has a moment to return. Then the attempt ends without it: its lease is given up,
nothing that it does counts any more, and it keeps its place until it returns.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack, nullcontext
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct

from horarium.clock import to_instant
from horarium.delivery.arguments import Arguments, UnknownArgs, json_of
from horarium.delivery.blocking import LoopWatch
from horarium.delivery.context import InThread, RunContext, job_args
from horarium.delivery.pool import Pool, check_poolable, place_of
from horarium.delivery.saying import Captured, speaks_for
from horarium.delivery.threads import Call, Threads
from horarium.errors import InvalidJob, InvalidRequest, WrongArguments
from horarium.model import RESULT_BYTES_MAX, TRACE_CHARS_MAX, Cancelled, Deferred, Failed, Outcome, Refused, Succeeded
from horarium.ports import Assignment, Control, RunLogs


def enter_trace(traceparent: str | None) -> Callable[[], None] | None:
    """From now on, in this task, the span of the attempt is the current one; returns how to leave it. Where the program
    has not loaded OpenTelemetry there is nothing to do, nor to leave."""
    if traceparent is None or "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry.context import attach, detach
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    _, trace_id, span_id, flags = traceparent.split("-")
    span = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    token = attach(set_span_in_context(NonRecordingSpan(span)))
    return lambda: detach(token)


HandlerFunction = Callable[..., Any]
Around = Callable[[RunContext], AbstractAsyncContextManager[Any]]
"""A context in which handlers are called."""
Inside = Callable[[RunContext], AbstractContextManager[Any]]
"""The same for plain contexts, which are entered where the handler is called: in its thread, if it has one."""
Errors = tuple[type[BaseException], ...]
Judge = Callable[[RunContext, BaseException], "bool | float | timedelta | None"]
"""Whether a run is tried again after this error: False (it is not), None or True (as its policy says), or after which
time (seconds)."""

log = logging.getLogger("horarium")

NOTHING = nullcontext()
CONCURRENCY_MAX = 10_000
OURS = frozenset({__name__, "horarium.delivery.arguments", "horarium.delivery.pool", "horarium.delivery.threads"})
"""Modules whose frames lead to a handler and say nothing about it."""
THREAD_PATIENCE_SECONDS = 1.5
"""How long a thread that is asked to stop is waited for. Less than the dispatcher waits at the end of a drain."""


def _seconds(given: object) -> float:
    """A timedelta, or seconds. Raises InvalidRequest for anything else: it comes from a program, unchecked."""
    if isinstance(given, timedelta):
        return given.total_seconds()
    if isinstance(given, int | float) and not isinstance(given, bool):
        return float(given)
    raise InvalidRequest(f"after: expected a timedelta or seconds, not {given!r}", field="after")


class Retry(Exception):
    """Raise it in a handler: failed, try again, after `after` (a timedelta or seconds) if given, else by the policy."""

    def __init__(self, reason: str = "retry asked", *, after: timedelta | float | None = None) -> None:
        super().__init__(reason)
        self.after_seconds = None if after is None else _seconds(after)


class Discard(Exception):
    """Raise it in a handler: failed for good, even if attempts are left."""


class Defer(Exception):
    """Raise it in a handler: not now; call again at `until` (an aware datetime). Costs no attempt."""

    def __init__(self, until: datetime, reason: str = "deferred by its handler") -> None:
        super().__init__(reason)
        self.until = to_instant(until)


class NotHere(Exception):
    """The run has args that the function does not know; a newer version of it may."""


class Rules(Struct, frozen=True):
    """What becomes of the errors of a handler, and what is around its calls. `retry_for`: only after these errors is a
    run tried again (None: after all). `give_up_on`: after these it is not. `judge`: asked about each error."""

    retry_for: Errors | None = None
    give_up_on: Errors = ()
    judge: Judge | None = None
    arounds: Sequence[Around] = ()
    insides: Sequence[Inside] = ()

    def inside(self, context: RunContext) -> AbstractContextManager[Any]:
        """All plain contexts, entered one after the other."""
        if not self.insides:
            return NOTHING
        with ExitStack() as stack:
            for each in self.insides:
                stack.enter_context(each(context))
            return stack.pop_all()
        return NOTHING

    def says(self, context: RunContext, error: BaseException) -> bool | float | None:
        """As `Judge`, a time in seconds."""
        if isinstance(error, self.give_up_on) or not (self.retry_for is None or isinstance(error, self.retry_for)):
            return False
        try:
            said = None if self.judge is None else self.judge(context, error)
            return said if said is None or isinstance(said, bool) else _seconds(said)
        except Exception:
            log.exception("run %s: the function that judges errors of %s failed", context.id, context.handler)
            return None


NO_RULES = Rules()


class Handler:
    """A registered function, and how it is to be called. `concurrency`: how many of it this process performs at one
    time (None: as many as there are places). `queue`: processes that name queues call it only if they serve this one.
    Raises InvalidJob for a function that can't be one."""

    __slots__ = ("arguments", "concurrency", "free", "function", "is_async", "name", "pool", "queue", "rules")

    def __init__(
        self,
        name: str,
        function: HandlerFunction,
        concurrency: int | None = None,
        rules: Rules = NO_RULES,
        pool: Pool | None = None,
        queue: str | None = None,
    ) -> None:
        if concurrency is not None and not 1 <= concurrency <= CONCURRENCY_MAX:
            raise InvalidJob(f"handler {name!r}: concurrency must be from 1 to {CONCURRENCY_MAX:,}, not {concurrency}")
        if not callable(function):
            raise InvalidJob(f"handler {name!r}: {function!r} is not a function")
        if _is(function, inspect.isgeneratorfunction) or _is(function, inspect.isasyncgenfunction):
            raise InvalidJob(f"handler {name!r}: it yields; a handler returns")
        self.name = name
        self.function = function
        self.concurrency = concurrency
        self.is_async = _is(function, inspect.iscoroutinefunction)
        self.rules = rules
        self.arguments = Arguments(name, function)
        self.free = self.arguments.free
        self.pool = pool
        self.queue = queue or "default"
        if pool is not None:
            check_poolable(name, function, self.arguments.run is not None, self.is_async)

    def call(self, context: RunContext) -> Any:
        """Call the function; for an async one, its coroutine. Raises WrongArguments or NotHere before it is called."""
        run, run_name = context._run, self.arguments.run_name
        if self.free:
            return self.function(context) if run_name is None else self.function(**{run_name: context})
        try:
            given = self.arguments.of(run.payload, None if run.payload is not None else job_args(context._job))
        except UnknownArgs as error:
            raise NotHere(str(error)) from None
        if self.pool is not None:
            return self.pool.call(self.function, given, context._may_end)
        if run_name is not None:
            return self.function(**{run_name: context, **given})
        return self.function(context, **given) if self.arguments.by_position else self.function(**given)


def _is(function: HandlerFunction, kind: Callable[[Any], bool]) -> bool:
    """Whether the function, or the `__call__` of an object, is of this kind."""
    return kind(function) or kind(getattr(type(function), "__call__", None))  # noqa: B004


class HandlerDelivery:
    """The Target of all handlers of this process. `capture`: what standard `logging` says in them is kept too."""

    def __init__(self, handlers: Mapping[str, Handler], logs: RunLogs, *, capture: bool = False) -> None:
        self._handlers = handlers
        self._logs = logs
        self._captured = Captured() if capture else None
        self._threads = Threads("horarium-handler")
        self._watch = LoopWatch()
        if self._captured is not None:
            logging.getLogger().addHandler(self._captured)

    @property
    def busy(self) -> bool:
        """Whether a thread is at work."""
        return self._threads.busy > 0

    async def deliver(self, assignment: Assignment, control: Control) -> Outcome | None:
        run = assignment.run
        handler = self._handlers.get(run.queue.removeprefix("handler/"))
        if handler is None:
            return Failed(f"there is no handler for {run.queue!r} in this process")
        thread = None if handler.is_async else InThread(control, asyncio.get_running_loop())
        context = RunContext(run, assignment.job, control, self._logs, thread)
        if self._captured is not None:
            speaks_for(context._keep)
        leave = enter_trace(context.traceparent) if run.history else None  # a trace is a line of its history
        if thread is None and not self._watch.started:
            self._watch.start()
        rules = handler.rules
        try:
            if thread is None and not (rules.arounds or rules.insides):
                answer = await handler.call(context)
                outcome = _NO_RESULT if answer is None and not context._saw_cancel else _returned(context, answer)
            else:
                call = self._surrounded if rules.arounds else self._call
                outcome = await call(handler, context, thread)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # KeyboardInterrupt and its like end the attempt, never the worker
            outcome = _failed_here(error, handler, context)
        finally:
            if leave is not None:
                leave()
        if context._spoke:
            control.done()
            await self._logs.written(run)  # a reader of its end finds all that it said
        return outcome

    async def _call(self, handler: Handler, context: RunContext, thread: InThread | None) -> Outcome:
        if thread is not None:
            return await self._in_thread(handler, context, thread)
        answer: Any = None  # a context may keep an error to itself
        with handler.rules.inside(context):
            answer = await handler.call(context)
        return _returned(context, answer)

    async def _surrounded(self, handler: Handler, context: RunContext, thread: InThread | None) -> Outcome:
        """Within its contexts, which see the handler's error. One that keeps the error to itself has mended it."""
        outcome: Outcome = _NO_RESULT
        try:
            async with AsyncExitStack() as stack:
                for around in handler.rules.arounds:
                    await stack.enter_async_context(around(context))
                outcome = await self._call(handler, context, thread)
                if context._error is not None:  # of a thread, which has judged it
                    raise context._error
        except BaseException as error:
            if error is not context._error:
                raise
            return outcome
        return _NO_RESULT if context._error is not None else outcome

    async def _in_thread(self, handler: Handler, context: RunContext, thread: InThread) -> Outcome:
        call = self._threads.call(lambda: _perform(handler, context))
        if handler.pool is not None:  # a function in a process of its own can't ask whether it is cancelled
            context._control.when_cancelled(context._end)
        try:
            answer = await call.answer
        except asyncio.CancelledError:
            answer = await self._stop(call, thread, context)
        return answer if isinstance(answer, Outcome) else _returned(context, await answer)

    async def _stop(self, call: Call[Any], thread: InThread, context: RunContext) -> Any:
        """Ask the thread to stop, and wait for it a little. Raises CancelledError if it goes on."""
        control = context._control
        thread.wake()
        context._end()
        over = call.over
        try:
            await asyncio.wait([over], timeout=THREAD_PATIENCE_SECONDS)
        finally:
            if not over.done():
                control.goes_on(over)
        if over.done():
            return over.result()
        raise asyncio.CancelledError

    async def close(self) -> None:
        self._threads.close()
        for pool in {id(each.pool): each.pool for each in self._handlers.values() if each.pool is not None}.values():
            await asyncio.to_thread(pool.close)
        self._watch.close()
        if self._captured is not None:
            logging.getLogger().removeHandler(self._captured)


def _perform(handler: Handler, context: RunContext) -> Outcome | Awaitable[Any]:
    """In the thread: the outcome; or a coroutine to await, where a plain function returned one."""
    answer: Any = None
    try:
        with handler.rules.inside(context):
            answer = handler.call(context)
        return answer if inspect.isawaitable(answer) else _returned(context, answer)
    except BaseException as error:
        return _failed(error, handler, context)


_NO_RESULT = Succeeded()
_STOPPED = Cancelled("its handler stopped when asked to")


def _returned(context: RunContext, answer: Any) -> Outcome:
    """What returning means. A handler that has seen that it should stop, and returns, has stopped: it is
    unknown how much of the work it has left out."""
    return _STOPPED if context._saw_cancel else result_of(answer, context)


def result_of(answer: Any, context: RunContext | None = None) -> Outcome:
    """The outcome of a handler that returned this. The log of its run says of a result that it is kept in part."""
    if answer is None:
        return _NO_RESULT
    try:
        result = json_of(answer, "it")
    except ValueError as error:
        return Failed(f"its result {error}", retryable=False)
    if len(result) > RESULT_BYTES_MAX:
        kept = result[: RESULT_BYTES_MAX // 4].decode(errors="replace")
        if context is not None:
            said = f"its result has {len(result):,} bytes, of {RESULT_BYTES_MAX:,} at most; only the beginning is kept"
            context.log.warning(said)
        result = msgspec.json.encode({"truncated": True, "bytes": len(result), "begins": kept})
    return Succeeded(result)


def _failed_here(error: BaseException, handler: Handler, context: RunContext) -> Outcome:
    """As `_failed`, on the event loop. Without a loop, a GeneratorExit is the end of this task."""
    if isinstance(error, GeneratorExit):
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise error from None
    return _failed(error, handler, context)


def _failed(error: BaseException, handler: Handler, context: RunContext) -> Outcome:
    if handler.rules.arounds:
        context._error = error
    match error:
        case Retry():
            return Failed(str(error), retry_after_seconds=error.after_seconds)
        case Discard():
            return Failed(str(error) or "discarded by its handler", retryable=False)
        case Defer():
            return Deferred(error.until, str(error))
        case NotHere():
            return Refused(str(error))
        case WrongArguments():
            return Failed(str(error), retryable=False)
        case SystemExit():
            return Failed(f"it called exit({error.code})", trace=trace_of(error))
        case _:
            said = handler.rules.says(context, error)
            return Failed(
                describe(error),
                trace=trace_of(error),
                retryable=said is not False,
                retry_after_seconds=None if isinstance(said, bool) else said,
            )


def trace_of(error: BaseException) -> str:
    """The end of its traceback, without our own frames above the handler's."""
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None and frames.tb_frame.f_globals.get("__name__") in OURS:
        frames = frames.tb_next
    try:
        lines = traceback.format_exception(type(error), error, frames)
    except Exception as failed:  # an exception whose own text can't be made
        lines = [f"{type(error).__name__}, whose traceback can't be written: {type(failed).__name__}"]
    return "".join(lines).rstrip()[-TRACE_CHARS_MAX:]


def describe(error: BaseException) -> str:
    """The error in one line, and where it was raised."""
    place = place_of(error)
    try:
        said = str(error)
    except Exception as failed:
        said = f"its text can't be made: {type(failed).__name__}"
    return type(error).__name__ + (f": {said}" if said else "") + (f" (at {place})" if place else "")
