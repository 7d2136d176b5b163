"""The scheduler for programs without asyncio: every method of `Scheduler`, and each waits for its answer.

    scheduler = SyncScheduler("sqlite:///horarium.db")

    @scheduler.handler("report")
    def report(run, month: int): ...

    scheduler.enqueue("report", {"month": 3})
    scheduler.run_forever()

There is no second implementation: a `Scheduler` lives on an event loop in a thread of its own, and `blocking` makes of
each of its methods, with the same parameters and types, one that has it called there. Any number of threads may call
at once. The one thing that can't be is a call from that very event loop (inside an async handler): it would wait for
itself, and is refused.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import update_wrapper
from importlib import import_module
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack
from weakref import WeakSet

from horarium.clock import Clock
from horarium.errors import Conflict, InvalidRequest
from horarium.interrupts import HEEDED_SECONDS, on_signals
from horarium.library.batches import Batch, SyncBatch
from horarium.library.fields import JobFields, SchedulerOptions
from horarium.library.scheduler import Scheduler
from horarium.library.tasks import Decorator, HandlerOptions
from horarium.library.values import Run
from horarium.ports import Store
from horarium.triggers import Trigger

MADE: WeakSet[SyncScheduler] = WeakSet()
"""All that there are."""
_OPEN: set[SyncScheduler] = set()
_AT_EXIT: list[Callable[[], None]] = []

P = ParamSpec("P")
T = TypeVar("T")


class LoopThread:
    """An event loop in a daemon thread, from now until `close`."""

    def __init__(self) -> None:
        self._begun = threading.Event()
        self._over: asyncio.Event
        self.loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._run, name="horarium-loop", daemon=True)
        self._thread.start()
        self._begun.wait()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._begun.set()
        await self._over.wait()

    def close(self) -> None:
        """End it, with all that still runs on it."""
        self.loop.call_soon_threadsafe(self._over.set)
        self._thread.join()


def blocking(
    method: Callable[Concatenate[Scheduler, P], Awaitable[T]],
) -> Callable[Concatenate[SyncScheduler, P], T]:
    """The method of `SyncScheduler` that calls this one on the event loop, and waits for it."""

    def call(self: SyncScheduler, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if kwargs.get("connection") is not None:
            kwargs["connection"] = _of_caller(self, kwargs["connection"])
        return self._call(lambda: method(self._scheduler, *args, **kwargs))

    update_wrapper(call, method)
    return call


def direct(method: Callable[Concatenate[Scheduler, P], T]) -> Callable[Concatenate[SyncScheduler, P], T]:
    """The same for a method that waits for nothing: it is called in the caller's thread."""

    def call(self: SyncScheduler, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(self._scheduler, *args, **kwargs)

    update_wrapper(call, method)
    return call


def batching(method: Callable[Concatenate[Scheduler, P], Batch]) -> Callable[Concatenate[SyncScheduler, P], SyncBatch]:
    """The same for what makes a batch."""

    def call(self: SyncScheduler, /, *args: P.args, **kwargs: P.kwargs) -> SyncBatch:
        return SyncBatch(self._call, method(self._scheduler, *args, **kwargs))

    update_wrapper(call, method)
    return call


class SyncScheduler:
    """A scheduler whose methods wait. `store` is a URL, a store, or a `Scheduler`: one that is open already is used
    where it is (so a plain handler can enqueue), any other gets a thread here. `options` are those of `Scheduler`.

    It is opened by the first call, so making one costs nothing and may be done at the top of a module; `close` (or the
    end of `with`, or of the program) stops the loops and disconnects. After that it can't be used again."""

    def __init__(
        self,
        store: str | Store | Scheduler = "sqlite:///horarium.db",
        *,
        namespace: str = "default",
        program: str | None = None,
        clock: Clock | None = None,
        actor: str | None = None,
        **options: Unpack[SchedulerOptions],
    ) -> None:
        if isinstance(store, Scheduler):
            if options:
                raise InvalidRequest(f"{', '.join(options)}: give options to the Scheduler itself")
            self._scheduler = store
        else:
            self._scheduler = Scheduler(
                store, namespace=namespace, program=program, clock=clock, actor=actor, **options
            )
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._pid = 0
        self._closed = False
        MADE.add(self)

    # ---- life

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Connect the store and bring its schema up to date. Every other call does so too, if it is not open."""
        self._call(self._scheduler.open)

    def close(self) -> None:
        """Stop the loops (see `stop`) and disconnect. May be called twice. A `Scheduler` that was open already when it
        was given is left as it is."""
        try:
            self._drain()
        except BaseException as error:
            self._disconnect(at_once=not isinstance(error, Exception))
            raise
        self._disconnect()

    def _drain(self) -> None:
        """Stop the loops; handlers may call until they have ended."""
        with self._lock:
            if self._thread is None or self._pid != os.getpid():
                return
            _refuse_own(self._thread.loop)
            asked = asyncio.run_coroutine_threadsafe(self._scheduler.stop(), self._thread.loop)
        try:
            _answer(asked)
        except Conflict:
            if not self._closed:  # else another thread has closed it meanwhile
                raise

    def _disconnect(self, *, at_once: bool = False) -> None:
        """`at_once`: by an interrupt, which waits for nothing."""
        with self._lock:
            if self._thread is not None:
                _refuse_own(self._thread.loop)
            thread, self._thread, self._closed = self._thread, None, True
        if thread is None or self._pid != os.getpid():
            return
        _OPEN.discard(self)
        try:
            if not at_once:
                _answer(asyncio.run_coroutine_threadsafe(self._scheduler.close(), thread.loop))
        finally:
            thread.close()

    def run_forever(self) -> None:
        """`start`, wait for SIGINT, SIGTERM or `stop`, then `stop`. A second signal ends the grace, a third one the
        process. In another thread than the main one, signals are not heeded: `stop` ends it."""
        self.open()
        with self._lock:
            loop = self._find_loop()
        with on_signals(lambda: loop.call_soon_threadsafe(self._scheduler.ask_to_stop)):
            self._call(self._scheduler.run_until_asked)

    start = blocking(Scheduler.start)
    stop = blocking(Scheduler.stop)

    # ---- handlers

    def handler(self, name: str | None = None, **options: Unpack[HandlerOptions]) -> Decorator[Run]:
        """As `Scheduler.handler`; the task's `enqueue` waits for its answer."""
        return Decorator(self._scheduler._program.registering(name, options), self.enqueue)

    def job(
        self,
        trigger: Trigger | Mapping[str, Any],
        name: str | None = None,
        *,
        args: Mapping[str, Any] | None = None,
        **fields: Unpack[JobFields],
    ) -> Decorator[Run]:
        """As `Scheduler.job`; the task's `enqueue` waits for its answer."""
        return Decorator(self._scheduler._program.scheduling(trigger, name, args, fields), self.enqueue)

    around = direct(Scheduler.around)
    on_startup = direct(Scheduler.on_startup)
    on_shutdown = direct(Scheduler.on_shutdown)
    add_handler = direct(Scheduler.add_handler)
    configure = direct(Scheduler.configure)

    # ---- jobs

    declare = blocking(Scheduler.declare)
    add_job = blocking(Scheduler.add_job)
    get_job = blocking(Scheduler.get_job)
    list_jobs = blocking(Scheduler.list_jobs)
    delete_job = blocking(Scheduler.delete_job)
    delete_jobs = blocking(Scheduler.delete_jobs)
    pause_job = blocking(Scheduler.pause_job)
    pause_jobs = blocking(Scheduler.pause_jobs)
    resume_job = blocking(Scheduler.resume_job)
    resume_jobs = blocking(Scheduler.resume_jobs)
    trigger_job = blocking(Scheduler.trigger_job)
    backfill_job = blocking(Scheduler.backfill_job)
    fires = blocking(Scheduler.fires)

    # ---- runs

    enqueue = blocking(Scheduler.enqueue)
    enqueue_many = blocking(Scheduler.enqueue_many)
    enqueue_sql = direct(Scheduler.enqueue_sql)
    add_run = blocking(Scheduler.add_run)
    add_runs = blocking(Scheduler.add_runs)
    get_run = blocking(Scheduler.get_run)
    wait_for = blocking(Scheduler.wait_for)
    result = blocking(Scheduler.result)
    run_log = blocking(Scheduler.run_log)
    explain = blocking(Scheduler.explain)
    attention = blocking(Scheduler.attention)
    acknowledge_cause = blocking(Scheduler.acknowledge_cause)
    reopen_cause = blocking(Scheduler.reopen_cause)
    list_runs = blocking(Scheduler.list_runs)
    cancel_run = blocking(Scheduler.cancel_run)
    retry_run = blocking(Scheduler.retry_run)
    cancel_runs = blocking(Scheduler.cancel_runs)
    retry_runs = blocking(Scheduler.retry_runs)
    stats = blocking(Scheduler.stats)

    # ---- channels

    put_channel = blocking(Scheduler.put_channel)
    get_channel = blocking(Scheduler.get_channel)
    list_channels = blocking(Scheduler.list_channels)
    delete_channel = blocking(Scheduler.delete_channel)
    test_channel = blocking(Scheduler.test_channel)
    send_by_channel = blocking(Scheduler.send_by_channel)

    # ---- rate limits

    set_rate = blocking(Scheduler.set_rate)
    list_rates = blocking(Scheduler.list_rates)
    reset_rate = blocking(Scheduler.reset_rate)

    # ---- queues

    set_fair_weights = blocking(Scheduler.set_fair_weights)
    fair_weights = blocking(Scheduler.fair_weights)

    # ---- calendars

    put_calendar = blocking(Scheduler.put_calendar)
    compare_calendar = blocking(Scheduler.compare_calendar)
    get_calendar = blocking(Scheduler.get_calendar)
    list_calendars = blocking(Scheduler.list_calendars)
    delete_calendar = blocking(Scheduler.delete_calendar)

    # ---- approvals

    list_approvals = blocking(Scheduler.list_approvals)
    decide = blocking(Scheduler.decide)

    # ---- overrides

    skip_fire = blocking(Scheduler.skip_fire)
    move_fire = blocking(Scheduler.move_fire)
    unskip_fire = blocking(Scheduler.unskip_fire)
    list_overrides = blocking(Scheduler.list_overrides)

    # ---- batches

    batch = batching(Scheduler.batch)
    get_batch = blocking(Scheduler.get_batch)
    wait_for_batch = blocking(Scheduler.wait_for_batch)
    list_batches = blocking(Scheduler.list_batches)
    close_batch = blocking(Scheduler.close_batch)
    cancel_batch = blocking(Scheduler.cancel_batch)
    retry_batch = blocking(Scheduler.retry_batch)

    # ---- holds

    add_hold = blocking(Scheduler.add_hold)
    get_hold = blocking(Scheduler.get_hold)
    list_holds = blocking(Scheduler.list_holds)
    update_hold = blocking(Scheduler.update_hold)
    lift_hold = blocking(Scheduler.lift_hold)

    # ---- plans

    plan = blocking(Scheduler.plan)
    apply_plan = blocking(Scheduler.apply_plan)
    approve_plan = blocking(Scheduler.approve_plan)
    forecast = blocking(Scheduler.forecast)

    # ---- feeds

    create_feed = blocking(Scheduler.create_feed)
    list_plans = blocking(Scheduler.list_plans)
    list_feeds = blocking(Scheduler.list_feeds)
    revoke_feed = blocking(Scheduler.revoke_feed)

    # ---- the way there

    def _prepare(self) -> None:
        """Called before it is used."""

    def _call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Have it done on the scheduler's event loop, on an open store; its answer, or its error."""

        self._prepare()

        async def opened() -> T:
            await self._scheduler.open()
            return await work()

        with self._lock:  # it is handed over before a close, which answers or ends it, or is refused
            loop = self._find_loop()
            _refuse_own(loop)
            asked = asyncio.run_coroutine_threadsafe(opened(), loop)
        return _answer(asked)

    def _find_loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the scheduler; made here, if there is none. The lock is held."""
        if self._closed:
            raise Conflict("this scheduler is closed; make another one")
        if self._thread is None:
            if self._scheduler.loop is not None:
                return self._scheduler.loop
            self._thread = LoopThread()
            self._pid = os.getpid()
            _close_at_exit(self)
        if self._pid != os.getpid():
            raise Conflict(
                "this process was forked after the scheduler was opened, and its thread stayed behind; "
                "make or open it in the child"
            )
        return self._thread.loop


def _answer(asked: Future[T]) -> T:
    try:
        while not asked.done():
            with suppress(TimeoutError):
                asked.exception(HEEDED_SECONDS)
        return asked.result()
    except CancelledError:
        raise Conflict("the scheduler was closed before this call was done") from None
    finally:
        asked.cancel()


def _of_caller(scheduler: SyncScheduler, connection: Any) -> Any:
    """Django's `connection`, and a scoped session of SQLAlchemy, stand for another one in each thread: the one of the
    caller. Others as they are; but an async one can't be used on an event loop that is the scheduler's alone."""
    execute = inspect.unwrap(getattr(connection, "execute", _of_caller))  # a pool of asyncpg lends it wrapped
    if inspect.iscoroutinefunction(execute) and (scheduler._thread is not None or scheduler._scheduler.loop is None):
        raise InvalidRequest(
            f"connection: {type(connection).__name__} belongs to an event loop of its own, where a Scheduler is "
            "awaited; a SyncScheduler takes a connection without asyncio",
            field="connection",
        )
    if hasattr(connection, "inc_thread_sharing"):
        return getattr(connection.cursor, "__self__", connection)
    return connection.registry() if callable(getattr(connection, "registry", None)) else connection


def _refuse_own(loop: asyncio.AbstractEventLoop) -> None:
    if _running_loop() is loop:
        raise Conflict(
            "a SyncScheduler was called on the event loop of its own scheduler, where it would wait for itself; "
            "in an async handler, await the methods of a Scheduler, or make the handler a plain function"
        )


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _close_at_exit(scheduler: SyncScheduler) -> None:
    """Have it closed at the end of the program, unless it is closed already."""
    _OPEN.add(scheduler)
    if not _AT_EXIT:
        _AT_EXIT.append(_close_open)
        # The pools of threads that stores use are ended before `atexit` has its turn, by functions registered when they
        # were imported; functions registered after them come before them.
        import_module("concurrent.futures.thread")
        getattr(threading, "_register_atexit", atexit.register)(_close_open)


def _close_open() -> None:
    for scheduler in list(_OPEN):
        scheduler.close()
